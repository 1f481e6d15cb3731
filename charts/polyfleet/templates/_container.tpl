{{/* What all containers have in common. */}}

{{/* Pod Security `restricted` for a container; what a pool replaces in it is an exception. */}}
{{- define "polyfleet.securityContext" -}}
{{- $restricted := "{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}" | fromYaml -}}
{{- include "polyfleet.overlay" (list $restricted (. | default dict)) -}}
{{- end -}}

{{- define "polyfleet.env" -}}
{{- range $name, $value := . -}}
- name: {{ $name }}
  value: {{ ternary (toJson $value) $value (kindIs "float64" $value) | quote }}
{{ end -}}
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
