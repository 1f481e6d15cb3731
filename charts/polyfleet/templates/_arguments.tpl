{{/* The command line of a worker. Takes {ctx, name, pool, model}. */}}
{{- define "polyfleet.workerArgs" -}}
- --listen=0.0.0.0:50061
- --metrics-listen=0.0.0.0:9100
- --transfer-listen=0.0.0.0:50062
- --advertise-host=$(POD_IP)
{{ include "polyfleet.arg" (include "polyfleet.fleetAddress" .ctx | printf "--fleet=%s") }}
- --fleet-token-file=/etc/polyfleet/fleet/fleet-token
{{- if .ctx.Values.fleetKeys.enabled }}
- --fleet-keys-file=/etc/polyfleet/fleet/fleet-keys.yaml
{{- end }}
{{- if .ctx.Values.tls.internal.enabled }}
- --fleet-tls-dir=/etc/polyfleet/fleet-tls
{{- end }}
- --accelerator={{ .pool.accelerator }}
{{ include "polyfleet.arg" (printf "--deployment=%s" .name) }}
{{ include "polyfleet.arg" (printf "--model=%s" .model.path) }}
{{ include "polyfleet.arg" (.pool.model.name | default .name | printf "--model-name=%s") }}
- --drain-timeout={{ .ctx.Values.longestStreamSeconds | int64 }}
- --log-level={{ .ctx.Values.logLevel }}
{{- range .pool.adapters }}
{{ include "polyfleet.arg" (printf "--adapter=%s=%s" .name .path) }}
{{- end }}
{{- range $option, $value := .pool.options }}
{{ include "polyfleet.arg" (kindIs "string" $value | ternary $value (toJson $value) | printf "--%s=%s" (kebabcase $option)) }}
{{- end }}
{{- end -}}

{{/* Refuse engine options that contradict each other. Takes {name, pool}. */}}
{{- define "polyfleet.checkOptions" -}}
{{- $options := .pool.options | default dict -}}
{{- $rows := int $options.stepTokens -}}
{{- $sequences := max 1 (int $options.maxSequences) -}}
{{- if and (gt $rows 0) (le $rows (int $sequences)) -}}
{{- fail (printf "workers.%s.options.stepTokens must be over maxSequences (%d), not %d." .name (int $sequences) $rows) -}}
{{- end -}}
{{- $most := mul $sequences (add 1 (int $options.draftTokens | default 4)) -}}
{{- if and (ne (default "off" $options.speculation) "off") (gt $rows 0) (le $rows (int $most)) -}}
{{- fail (printf "workers.%s.options.stepTokens must be over maxSequences and their drafts (%d), not %d." .name (int $most) $rows) -}}
{{- end -}}
{{- $least := int $options.ngramMin | default 2 -}}
{{- $longest := int $options.ngramMax | default 8 -}}
{{- if lt $longest $least -}}
{{- fail (printf "workers.%s.options.ngramMax must be at least ngramMin (%d), not %d." .name $least $longest) -}}
{{- end -}}
{{- end -}}
