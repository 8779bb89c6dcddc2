{{- define "slurm-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "slurm-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "slurm-operator.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "slurm-operator.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "slurm-operator.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "slurm-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "slurm-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "slurm-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "slurm-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: slurm-operator
{{- end }}

{{- define "slurm-operator.serviceAccount" -}}
{{- if .Values.operator.serviceAccount.create }}
{{- default (include "slurm-operator.fullname" .) .Values.operator.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.operator.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "slurm-operator.image" -}}
{{- with .Values.operator.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.Version .tag }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "slurm-operator.webhook.name" -}}
{{- printf "%s-webhook" (include "slurm-operator.fullname" . | trunc 55 | trimSuffix "-") }}
{{- end }}

{{- define "slurm-operator.webhook.selectorLabels" -}}
app.kubernetes.io/name: {{ printf "%s-webhook" (include "slurm-operator.name" . | trunc 55 | trimSuffix "-") }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "slurm-operator.webhook.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "slurm-operator.webhook.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: slurm-operator
{{- end }}

{{- define "slurm-operator.webhook.serviceAccount" -}}
{{- if .Values.webhook.serviceAccount.create }}
{{- default (include "slurm-operator.webhook.name" .) .Values.webhook.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.webhook.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* The operator and the webhook are one program. */}}
{{- define "slurm-operator.webhook.image" -}}
{{- $image := .Values.webhook.image -}}
{{- if not (or $image.repository $image.tag $image.digest) -}}
{{ include "slurm-operator.image" . }}
{{- else if $image.digest -}}
{{ default .Values.operator.image.repository $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ default .Values.operator.image.repository $image.repository }}:{{ default .Chart.Version $image.tag }}
{{- end -}}
{{- end }}

{{- /* The Secret with the certificates that the webhook manages itself. */}}
{{- define "slurm-operator.webhook.secret" -}}
{{ include "slurm-operator.webhook.name" . }}-tls
{{- end }}

{{- /* The namespaces that are checked; none stands for all. */}}
{{- define "slurm-operator.webhook.namespaces" -}}
{{- $names := list -}}
{{- range splitList "," .Values.webhook.namespaces }}{{ with trim . }}{{ $names = append $names . }}{{ end }}{{ end -}}
{{- toJson $names -}}
{{- end }}

{{- /* Arguments: the root, and namespaces that are never checked. */}}
{{- define "slurm-operator.webhook.namespaceSelector" -}}
{{- $namespaces := include "slurm-operator.webhook.namespaces" (index . 0) | fromJsonArray -}}
matchExpressions:
  {{- if $namespaces }}
  - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson $namespaces }}}
  {{- end }}
  - {key: kubernetes.io/metadata.name, operator: NotIn, values: {{ toJson (index . 1) }}}
{{- end }}
