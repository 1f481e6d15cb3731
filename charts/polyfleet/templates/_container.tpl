{{/* What all containers have in common. */}}

{{/* Pod Security `restricted` for a container; what a pool replaces in it is an exception. */}}
{{- define "polyfleet.securityContext" -}}
{{- $restricted := "{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}" | fromYaml -}}
{{- include "polyfleet.overlay" (list $restricted (. | default dict)) -}}
{{- end -}}

{{/* A container's argument: what is no YAML stays text, and no $(NAME) in it is one that Kubernetes fills in. */}}
{{- define "polyfleet.arg" -}}
- {{ replace "$" "$$" . | toJson }}
{{- end -}}

{{/* Variables by name; those of the whole program, which the values may replace, are in the one below. */}}
{{- define "polyfleet.env" -}}
{{- range $name, $value := . -}}
- name: {{ $name | quote }}
  value: {{ ternary (toJson $value) $value (kindIs "float64" $value) | quote }}
{{ end -}}
{{- end -}}

{{- define "polyfleet.ownEnv" -}}
{{- include "polyfleet.env" (merge (dict) (. | default dict) (dict "HOME" "/tmp")) | trim -}}
{{- end -}}

{{- define "polyfleet.podIP" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
{{- end -}}

{{/* Process 1 of every container, as the images' entrypoint: it passes signals on, also while the program starts. */}}
{{- define "polyfleet.init" -}}
dumb-init, --single-child, --
{{- end -}}
