{{- define "slurm.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "slurm.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "slurm.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "slurm.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "slurm.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{/* Labels of all objects. */}}
{{- define "slurm.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/part-of: slurm
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The metadata of an object: (root, name, metadata of the values). The user's labels win. */}}
{{- define "slurm.metadata" -}}
{{- $metadata := default dict .metadata -}}
{{- $labels := merge (deepCopy (default dict $metadata.labels)) (fromYaml (include "slurm.labels" .root)) -}}
name: {{ .name }}
namespace: {{ include "slurm.namespace" .root }}
labels: {{- toYaml $labels | nindent 2 }}
{{- with $metadata.annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* An image: a string, or {repository, tag, digest}. */}}
{{- define "slurm.image" -}}
{{- if kindIs "string" . -}}
{{ . }}
{{- else -}}
{{- /* A container runtime ignores the tag if there is a digest, and the operator takes the version from it. */ -}}
{{ required "an image needs a repository" .repository }}
{{- if or .tag (not .digest) }}:{{ required (printf "the image %s needs a tag or a digest" .repository) .tag }}{{ end -}}
{{- with .digest }}@{{ . }}{{ end -}}
{{- end -}}
{{- end }}

{{/* A map without entries that are null, "", {} or []. Zero and false are kept. As JSON. */}}
{{- define "slurm.said" -}}
{{- $said := dict -}}
{{- range $key, $value := . -}}
{{- if not (or (kindIs "invalid" $value) (and (or (kindIs "map" $value) (kindIs "slice" $value) (kindIs "string" $value)) (empty $value))) -}}
{{- $_ := set $said $key $value -}}
{{- end -}}
{{- end -}}
{{- toJson $said -}}
{{- end }}

{{/* A container: (root, container). */}}
{{- define "slurm.container" -}}
{{- $container := fromJson (include "slurm.said" (default dict .container)) -}}
{{- if $container.image -}}
{{- $_ := set $container "image" (include "slurm.image" $container.image) -}}
{{- end -}}
{{- if not $container.imagePullPolicy -}}
{{- $_ := set $container "imagePullPolicy" .root.Values.imagePullPolicy -}}
{{- end -}}
{{- toYaml $container -}}
{{- end }}

{{/* A pod template: (root, metadata, podSpec). It has no chart version, because each new version would replace every pod. */}}
{{- define "slurm.template" -}}
{{- $metadata := default dict .metadata -}}
{{- $spec := fromJson (include "slurm.said" (default dict .podSpec)) -}}
{{- with .root.Values.imagePullSecrets -}}
{{- $_ := set $spec "imagePullSecrets" (concat (default list $spec.imagePullSecrets) .) -}}
{{- end -}}
{{- if and .root.Values.priorityClass.enabled (not $spec.priorityClassName) -}}
{{- $_ := set $spec "priorityClassName" (required "priorityClass.name is missing" .root.Values.priorityClass.name) -}}
{{- end -}}
metadata:
  labels: {{- toYaml (merge (deepCopy (default dict $metadata.labels)) (dict "app.kubernetes.io/part-of" "slurm")) | nindent 4 }}
  {{- with $metadata.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- with $spec }}
spec: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A service template. */}}
{{- define "slurm.service" -}}
{{- $service := fromJson (include "slurm.said" (default dict .)) -}}
{{- with $service -}}
service: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A map as Key=Value: (map, separator). Numbers are written without an exponent. */}}
{{- define "slurm.pairs" -}}
{{- $pairs := list -}}
{{- range $key, $value := fromJson (include "slurm.said" (default dict .map)) -}}
{{- $words := list -}}
{{- range (kindIs "slice" $value | ternary $value (list $value)) -}}
{{- $words = append $words (kindIs "string" . | ternary . (toJson .)) -}}
{{- end -}}
{{- $pairs = append $pairs (printf "%s=%s" $key (join "," $words)) -}}
{{- end -}}
{{- join .separator $pairs -}}
{{- end }}

{{/* Text, or a map if there is no text: (text, map, separator). */}}
{{- define "slurm.conf" -}}
{{- if .text -}}
{{- trim .text -}}
{{- else -}}
{{- include "slurm.pairs" . -}}
{{- end -}}
{{- end }}

{{/* A reference to a key: (name, key, reference of the values). */}}
{{- define "slurm.ref" -}}
{{- $ref := default dict .ref -}}
name: {{ default .name $ref.name }}
key: {{ default .key $ref.key }}
{{- end }}

{{/* References to the keys that slurmctld and slurmdbd share. */}}
{{- define "slurm.keys" -}}
{{- $fullname := include "slurm.fullname" . -}}
slurmKeyRef: {{- include "slurm.ref" (dict "name" (printf "%s-auth-slurm" $fullname) "key" "slurm.key" "ref" (coalesce .Values.slurmKey.secretRef .Values.slurmKeyRef)) | nindent 2 }}
jwtKeyRef: {{- include "slurm.ref" (dict "name" (printf "%s-auth-jwt" $fullname) "key" "jwt.key" "ref" (coalesce .Values.jwtKey.secretRef .Values.jwtHs256KeyRef)) | nindent 2 }}
{{- if .Values.jwksKeys.enabled }}
jwksKeyRef: {{- include "slurm.ref" (dict "name" (printf "%s-auth-jwks" $fullname) "key" "jwks.json" "ref" .Values.jwksKeys.configMapRef) | nindent 2 }}
{{- end }}
{{- end }}

{{/* The values of a NodeSet, merged over the defaults: (root, name). As JSON. */}}
{{- define "slurm.nodeset" -}}
{{- $own := deepCopy (default dict (index .root.Values.nodesets .name)) -}}
{{- $nodeset := mustMergeOverwrite (deepCopy .root.Values.nodesetDefaults) $own -}}
{{- include "slurm.vendor.nodeset" (dict "root" .root "name" .name "nodeset" $nodeset) -}}
{{- end }}

{{/* The names of the enabled NodeSets. As JSON. */}}
{{- define "slurm.nodesets" -}}
{{- $names := list -}}
{{- range $name, $nodeset := .Values.nodesets -}}
{{- $enabled := (default dict $nodeset).enabled -}}
{{- if kindIs "invalid" $enabled | ternary $.Values.nodesetDefaults.enabled $enabled -}}
{{- $names = append $names $name -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}

{{/* The values of a LoginSet, merged over the defaults: (root, loginset). As JSON. */}}
{{- define "slurm.loginset" -}}
{{- toJson (mustMergeOverwrite (deepCopy .root.Values.loginsetDefaults) (deepCopy (default dict .loginset))) -}}
{{- end }}

{{/* The names of the enabled LoginSets. As JSON. */}}
{{- define "slurm.loginsets" -}}
{{- $names := list -}}
{{- range $name, $loginset := .Values.loginsets -}}
{{- if (fromJson (include "slurm.loginset" (dict "root" $ "loginset" $loginset))).enabled -}}
{{- $names = append $names $name -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}

{{/* The partition lines of slurm.conf. */}}
{{- define "slurm.partitions" -}}
{{- $nodesets := fromJsonArray (include "slurm.nodesets" .) -}}
{{- $lines := list -}}
{{- range $name, $partition := .Values.partitions -}}
{{- with $partition -}}
{{- if not .nodesets -}}
{{- fail (printf "partitions.%s.nodesets is empty: list entries of nodesets, or ALL" $name) -}}
{{- end -}}
{{- if .enabled -}}
{{- range .nodesets -}}
{{- if not (or (eq . "ALL") (has . $nodesets)) -}}
{{- fail (printf "partitions.%s.nodesets names %q, which is not an enabled entry of nodesets" $name .) -}}
{{- end -}}
{{- end -}}
{{- $conf := include "slurm.conf" (dict "text" .config "map" .configMap "separator" " ") -}}
{{- $lines = append $lines (printf "PartitionName=%s Nodes=%s %s" $name (join "," (sortAlpha .nodesets)) $conf | trim) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- end }}

{{/* References to ConfigMaps: (field, refs, name of the chart's ConfigMap, files in it, names of others). */}}
{{- define "slurm.refs" -}}
{{- $refs := default list .refs -}}
{{- if .files -}}
{{- $refs = append $refs (dict "name" .name) -}}
{{- end -}}
{{- range .others -}}
{{- $refs = append $refs (dict "name" .) -}}
{{- end -}}
{{- with $refs -}}
{{ $.field }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A ConfigMap with files, if there are any: (root, name, files, prefix of the file names). */}}
{{- define "slurm.files" -}}
{{- if .files }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "slurm.metadata" . | nindent 2 }}
data:
  {{- range $name, $text := .files }}
  {{ printf "%s%s" $.prefix $name }}: {{ $text | quote }}
  {{- end }}
{{- end }}
{{- end }}
