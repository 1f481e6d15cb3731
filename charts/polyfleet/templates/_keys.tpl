{{/*
Keys of the parts' roles: a token each, and the file with their hashes. Takes {kept (what the Secret has), generation}.
Of another generation new ones are made, and the hashes of those that were valid last stay for the parts that show them.
*/}}
{{- define "polyfleet.roleKeys" -}}
{{- $known := ((index .kept "fleet-keys.yaml" | default "" | b64dec | fromYaml).keys) | default list -}}
{{- $ids := list -}}
{{- range $known }}{{ $ids = append $ids .id }}{{ end -}}
{{- $same := has (printf "worker-%d" .generation) $ids -}}
{{- $new := list -}}
{{- $before := list -}}
{{- range $role := list "gateway" "scheduler" "worker" "operator" -}}
{{- $id := printf "%s-%d" $role $.generation -}}
{{- $old := index $.kept (printf "%s-token" $role) | default "" | b64dec -}}
{{- $token := ternary $old (printf "pf-%s" (randAlphaNum 48)) $same -}}
{{- $new = append $new (dict "id" $id "hash" (sha256sum $token) "role" $role) -}}
{{- range $known -}}
{{- $mine := and (eq .role $role) (ne .id $id) -}}
{{- if and $mine (or $same (eq .hash (sha256sum $old))) }}{{ $before = append $before . }}{{ end -}}
{{- end }}
{{ $role }}-token: {{ b64enc $token }}
{{- end }}
fleet-keys.yaml: {{ dict "keys" (concat $new $before) | toYaml | b64enc }}
{{- end -}}

{{/* What a part shows the others, as fleet-token, and the hashes of what it is shown: {ctx, role, name (of the volume)}. */}}
{{- define "polyfleet.fleetVolume" -}}
- name: {{ .name | default "fleet" }}
  secret:
    secretName: {{ include "polyfleet.fleetSecret" .ctx | quote }}
    {{- if .ctx.Values.fleetKeys.enabled }}
    items: [{key: {{ .role }}-token, path: fleet-token}, {key: fleet-keys.yaml, path: fleet-keys.yaml}]
    {{- else }}
    items: [{key: fleet-token, path: fleet-token}]
    {{- end }}
    defaultMode: 0440
{{- end -}}
