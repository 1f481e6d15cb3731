{{/* What the pods of an accelerator need; a pool may override each of it. resources: the names that its plug-ins use. */}}
{{- define "polyfleet.accelerators" -}}
cpu: {}
cuda:
  resources: ^nvidia\.com/(gpu(\.shared|mem|mem-percentage|cores)?|priority|mig-[0-9a-z.+-]+)$
  resource: nvidia.com/gpu
  runtimeClassName: nvidia
  env: {NVIDIA_DRIVER_CAPABILITIES: "compute,utility"}
rocm:
  resources: ^amd\.com/(gpu(mem|cores)?|[sdqc]px_nps[0-9])$
  resource: amd.com/gpu
  supplementalGroups: [44, 110]
xpu:
  resources: ^gpu\.intel\.com/(xe|i915)$
  resource: gpu.intel.com/xe
  supplementalGroups: [44, 110]
ascend:
  resources: ^huawei\.com/(npu|Ascend(310|310P|910)[0-9A-Za-z.-]*)$
  resource: huawei.com/Ascend910
  runtimeClassName: ascend
  supplementalGroups: [1000]
cambricon:
  resources: ^cambricon\.com/(v?mlu[0-9a-z.-]*|real-mlu-counts)$
  resource: cambricon.com/mlu
  runtimeClassName: cambricon
hygon:
  resources: ^hygon\.com/[hd]cu[0-9a-z-]*$
  resource: hygon.com/dcu
  supplementalGroups: [44, 110]
  hostMounts: [/opt/hyhal]
{{- end -}}

{{/* All pools by name, whole: accelerator's defaults, then workerDefaults, then what the pool says. Taints are named as resources are. */}}
{{- define "polyfleet.pools" -}}
{{- $accelerators := include "polyfleet.accelerators" . | fromYaml -}}
{{- $pools := dict -}}
{{- range $name, $pool := .Values.workers | default (include "polyfleet.defaultPools" . | fromYaml) -}}
{{- with $pool -}}
{{- $accelerator := index $accelerators .accelerator | default dict -}}
{{- $tolerations := list -}}
{{- range list $accelerator.resource (.resource | default "") | compact | uniq -}}
{{- $tolerations = append $tolerations (dict "key" . "operator" "Exists" "effect" "NoSchedule") -}}
{{- end -}}
{{- $layers := list $accelerator (dict "tolerations" $tolerations) $.Values.workerDefaults . -}}
{{- $_ := set $pools $name (include "polyfleet.overlay" $layers | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- toYaml $pools -}}
{{- end -}}

{{/* The small model lies in the image worker-cpu. */}}
{{- define "polyfleet.defaultPools" -}}
cpu:
  accelerator: cpu
  resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {memory: 4Gi}}
  model:
    name: smollm2-135m-instruct
    image: {path: /opt/polyfleet/models/SmolLM2-135M-Instruct.Q4_1.gguf}
{{- end -}}
