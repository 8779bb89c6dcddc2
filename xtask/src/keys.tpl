{{- /*
Made by `cargo xtask gen` from values.schema.json.

Refuses keys that this chart does not know, and names the nearest one that it knows. A schema cannot say that.
Helm renders files in deep folders first, so that a mistyped key is reported before what follows from it.
*/}}
{{- define "values.known" -}}
@KNOWN@
{{- end }}

{{- /* The known key that is most like a key: (key, known keys). Both are compared by their pairs of letters. */}}
{{- define "values.nearest" -}}
{{- $key := lower .key -}}
{{- $best := 35 -}}
{{- $nearest := "" -}}
{{- range $name := .names -}}
{{- $same := 0 -}}
{{- range $at := until (int (max 0 (sub (len $key) 1))) -}}
{{- if contains (substr $at (int (add $at 2)) $key) (lower $name) }}{{ $same = add $same 1 }}{{ end -}}
{{- end -}}
{{- $likeness := div (mul 200 $same) (max 1 (sub (add (len $key) (len $name)) 2)) -}}
{{- if gt $likeness $best }}{{ $best = $likeness }}{{ $nearest = $name }}{{ end -}}
{{- end -}}
{{- $nearest -}}
{{- end }}

{{- /* (known keys, values, path of the values) */}}
{{- define "values.check" -}}
{{- range $key, $value := .values -}}
{{- $path := printf "%s%s" $.path $key -}}
{{- if hasKey $.known $key -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $.known $key)) -}}
{{- include "values.check" (dict "known" (get $.known $key) "values" $value "path" (printf "%s." $path)) -}}
{{- end -}}
{{- else if hasKey $.known "*" -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $.known "*")) -}}
{{- include "values.check" (dict "known" (get $.known "*") "values" $value "path" (printf "%s." $path)) -}}
{{- end -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $names := keys $.known | sortAlpha -}}
{{- $nearest := include "values.nearest" (dict "key" $key "names" $names) -}}
{{- if $nearest -}}
{{- fail (printf "\n\nthere is no value %s: do you mean %s%s?\n" $path $.path $nearest) -}}
{{- end -}}
{{- $deeper := list -}}
{{- range $names -}}
{{- $inner := get $.known . -}}
{{- if and (kindIs "map" $inner) (hasKey (default dict $inner) $key) }}{{ $deeper = append $deeper (printf "%s%s.%s" $.path . $key) }}{{ end -}}
{{- end -}}
{{- if $deeper -}}
{{- fail (printf "\n\nthere is no value %s: do you mean %s?\n" $path (join " or " $deeper)) -}}
{{- end -}}
{{- fail (printf "\n\nthere is no value %s: known here are %s\n" $path (join ", " $names)) -}}
{{- end -}}
{{- end -}}
{{- end }}
{{- include "values.check" (dict "known" (fromJson (include "values.known" .)) "values" .Values "path" "") }}
