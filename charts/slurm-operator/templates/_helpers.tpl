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

{{- /* An image: (repository, tag, digest, field, version of the chart). */}}
{{- define "slurm-operator.reference" -}}
{{- if not .repository -}}
{{- fail (printf "\n\n%s.repository is not set, and no image of the operator is published. Build it in a checkout, push it, and name it:\n\n  docker build -f images/operator/Containerfile -t registry.example.com/slurm-operator:%s .\n  docker push registry.example.com/slurm-operator:%s\n  helm … --set %s.repository=registry.example.com/slurm-operator\n" .field .version .version .field) -}}
{{- end -}}
{{- if regexMatch "(^|/)slinkyproject/slurm-operator(-webhook)?$" .repository -}}
{{- fail (printf "%s.repository is %s, the image of the Go operator, which this chart cannot run: name an image that was built from images/operator/Containerfile" .field .repository) -}}
{{- end -}}
{{- .repository -}}
{{- if or .tag (not .digest) }}:{{ default .version .tag }}{{ end -}}
{{- with .digest }}@{{ . }}{{ end -}}
{{- end }}

{{- define "slurm-operator.image" -}}
{{- include "slurm-operator.reference" (merge (dict "field" "operator.image" "version" .Chart.Version) .Values.operator.image) -}}
{{- end }}

{{- /* The securityContext of a pod: that of the values over ours. */}}
{{- define "slurm-operator.podSecurityContext" -}}
{{- $ours := dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532 "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $ours (deepCopy .)) -}}
{{- end }}

{{- /* The securityContext of a container: that of the values over ours. */}}
{{- define "slurm-operator.securityContext" -}}
{{- $ours := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) -}}
{{- toYaml (mergeOverwrite $ours (deepCopy .)) -}}
{{- end }}

{{- /* Where pods run: (values of the operator or the webhook, labels of its pods). */}}
{{- define "slurm-operator.placement" -}}
{{- $labels := index . 1 -}}
{{- with index . 0 -}}
{{- $spread := .topologySpreadConstraints -}}
{{- if and (not $spread) (gt (int .replicas) 1) -}}
{{- $spread = list (dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway" "labelSelector" (dict "matchLabels" $labels)) -}}
{{- end -}}
{{- $all := dict "nodeSelector" .nodeSelector "affinity" .affinity "tolerations" .tolerations "topologySpreadConstraints" $spread -}}
{{- range $field, $value := $all }}
{{- if $value }}
{{ dict $field $value | toYaml }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Metadata of what Prometheus or Grafana finds by its labels: (root, values, labels of ours as text). */}}
{{- define "slurm-operator.found" -}}
namespace: {{ default (include "slurm-operator.namespace" .root) .values.namespace }}
labels: {{- toYaml (merge (deepCopy (default dict .values.labels)) (fromYaml .labels)) | nindent 2 }}
{{- with .values.annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
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
{{- else -}}
{{- $repository := default .Values.operator.image.repository $image.repository -}}
{{- include "slurm-operator.reference" (merge (dict "field" "webhook.image" "version" .Chart.Version "repository" $repository) $image) -}}
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
