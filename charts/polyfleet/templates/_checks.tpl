{{/* What the schema can't say, each refusal one sentence. Rendered before anything is installed. */}}
{{- define "polyfleet.checks" -}}
{{- range $name, $pool := include "polyfleet.pools" . | fromYaml -}}
{{- include "polyfleet.checkCache" (dict "name" $name "model" (include "polyfleet.model" (dict "name" $name "pool" $pool) | fromYaml) "cache" $pool.model.cache) -}}
{{- include "polyfleet.checkVolumes" (dict "name" $name "pool" $pool) -}}
{{- include "polyfleet.checkAdapters" (dict "name" $name "pool" $pool) -}}
{{- include "polyfleet.checkDevices" (dict "ctx" $ "name" $name "pool" $pool) -}}
{{- include "polyfleet.checkAutoscaling" (dict "ctx" $ "name" $name "pool" $pool) -}}{{- include "polyfleet.checkOptions" (dict "name" $name "pool" $pool) -}}
{{- end -}}
{{- include "polyfleet.checkTraffic" . -}}
{{- if and .Values.auth.existingSecret (or .Values.auth.keys .Values.auth.tenants) -}}
{{- fail "auth.keys and auth.tenants go into the Secret that the chart makes, and auth.existingSecret replaces it: give one of them." -}}
{{- end -}}
{{- if and (not .Values.auth.enabled) (or .Values.auth.existingSecret .Values.auth.keys) -}}
{{- fail "auth.enabled is false, so that auth.existingSecret and auth.keys would do nothing: leave them out." -}}
{{- end -}}
{{- include "polyfleet.checkTls" .Values.tls -}}
{{- include "polyfleet.checkInternalTls" . -}}
{{- if and .Values.console.enabled (not .Values.auth.enabled) -}}
{{- fail "console.enabled needs auth.enabled: without keys whoever reaches the console could deploy and undeploy." -}}
{{- end -}}
{{- if and .Values.gatewayApi.enabled (not .Values.gatewayApi.parentRefs) -}}
{{- fail "gatewayApi.enabled needs gatewayApi.parentRefs, the Gateways that the routes belong to." -}}
{{- end -}}
{{- if and .Values.scheduler.persistence.existingClaim (not .Values.scheduler.persistence.enabled) -}}
{{- fail "scheduler.persistence.enabled is false, so that existingClaim would do nothing: set it, or leave the claim out." -}}
{{- end -}}
{{- if regexMatch "^[0-9]" (include "polyfleet.name" (dict "ctx" . "component" "gateway")) -}}
{{- fail (printf "The name %s begins with a digit, and a Service's may not: give fullnameOverride." (.Values.fullnameOverride | default .Release.Name)) -}}
{{- end -}}
{{- include "polyfleet.checkKeys" . -}}
{{- include "polyfleet.checkApis" . -}}
{{- if lookup "v1" "ConfigMap" .Release.Namespace "kube-root-ca.crt" -}}{{/* every namespace of a cluster has it */}}
{{- include "polyfleet.checkSecrets" . -}}
{{- include "polyfleet.checkClaims" . -}}
{{- include "polyfleet.checkStateClaim" . -}}
{{- end -}}
{{- end -}}

{{- define "polyfleet.checkCache" -}}
{{- with .cache -}}
{{- if not $.model.fetch -}}
{{- fail (printf "workers.%s.model.cache is for models from hub or s3, not from %s: leave it out." $.name $.model.kind) -}}
{{- end -}}
{{- if gt (list .claimName .hostPath .sizeLimit | compact | len) 1 -}}
{{- fail (printf "workers.%s.model.cache takes one of claimName, hostPath and sizeLimit." $.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "polyfleet.checkVolumes" -}}
{{- $names := list -}}
{{- range .pool.volumes -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" .name) -}}
{{- fail (printf "workers.%s.volumes: %s is no name of a volume; it takes up to 63 of a-z, 0-9 and -." $.name .name) -}}
{{- end -}}
{{- if or (regexMatch "^(fleet|tmp|shm|models|fetch|model-source|ray|ray-tmp|ray-shm|state|scheduler-tls|scheduler-fleet|worker-tls|host-[0-9]+)$" .name) (has .name $names) -}}
{{- fail (printf "workers.%s.volumes: the pod has a volume %s already: give yours another name." $.name .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range .pool.volumeMounts -}}
{{- if not (has .name $names) -}}
{{- fail (printf "workers.%s.volumeMounts: there is no volume %s in volumes." $.name .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "polyfleet.checkAdapters" -}}
{{- $names := list -}}
{{- range .pool.adapters -}}
{{- if has .name $names -}}
{{- fail (printf "workers.%s.adapters: there are two adapters %s: give one another name." $.name .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}

{{- define "polyfleet.checkDevices" -}}
{{- $table := include "polyfleet.accelerators" .ctx | fromYaml -}}
{{- $names := list .pool.resource | concat (keys (.pool.resources.limits | default dict)) (keys (.pool.resources.requests | default dict)) -}}
{{- $accelerator := index $table .pool.accelerator | default dict -}}
{{- range $names | compact | uniq -}}
{{- if and (hasKey $table $.pool.accelerator) (contains "/" .) (not (regexMatch ($accelerator.resources | default "^$") .)) -}}
{{- $hint := ternary "none" (printf "one such as %s" ($accelerator.resource | default "")) (empty $accelerator.resource) -}}
{{- fail (printf "workers.%s: the accelerator %s does not use the resource %s; it takes %s." $.name $.pool.accelerator . $hint) -}}
{{- end -}}
{{- end -}}
{{- range $list := list "limits" "requests" -}}
{{- if hasKey (index $.pool.resources $list | default dict) ($.pool.resource | default "none") -}}
{{- fail (printf "workers.%s.resources.%s: leave %s out, of which a worker gets one for each rank." $.name $list $.pool.resource) -}}
{{- end -}}
{{- end -}}
{{- if and $accelerator.resource (not .pool.resource) -}}
{{- fail (printf "workers.%s.resource: the accelerator %s needs a resource, such as %s." .name .pool.accelerator $accelerator.resource) -}}
{{- end -}}
{{- end -}}

{{/* Objects of APIs that the cluster lacks. Without a cluster: helm template --api-versions GROUP/VERSION. */}}
{{- define "polyfleet.checkApis" -}}
{{- $wanted := dict -}}
{{- if or .Values.monitoring.enabled .Values.monitoring.rules }}{{ $_ := set $wanted "monitoring.coreos.com/v1" "monitoring" }}{{ end -}}
{{- if and .Values.tls.enabled .Values.tls.certManager.enabled }}{{ $_ := set $wanted "cert-manager.io/v1" "tls.certManager.enabled" }}{{ end -}}
{{- if .Values.tls.internal.certManager.enabled }}{{ $_ := set $wanted "cert-manager.io/v1" "tls.internal.certManager.enabled" }}{{ end -}}
{{- if .Values.gatewayApi.enabled }}{{ $_ := set $wanted "gateway.networking.k8s.io/v1" "gatewayApi.enabled" }}{{ end -}}
{{- range $name, $pool := include "polyfleet.pools" . | fromYaml -}}
{{- if eq $pool.autoscaling.owner "keda" }}{{ $_ := set $wanted "keda.sh/v1alpha1" (printf "workers.%s.autoscaling" $name) }}{{ end -}}
{{- if and $pool.model.imageVolume (semverCompare "<1.33.0-0" $.Capabilities.KubeVersion.Version) -}}
{{- fail (printf "workers.%s.model.imageVolume needs Kubernetes 1.33 or newer; this is %s." $name $.Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
{{- range $api, $key := $wanted -}}
{{- if not ($.Capabilities.APIVersions.Has $api) -}}
{{- fail (printf "%s needs the API %s, which this cluster does not have: install what brings it, or leave %s out." $key $api $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "polyfleet.checkKeys" -}}
{{- $ids := list "first" -}}{{/* the chart's own key */}}
{{- $hashes := list -}}
{{- $owners := list "first" -}}
{{- range .Values.auth.keys -}}
{{- if has .id $ids -}}
{{- fail (printf "auth.keys: there are two keys with the id %s%s: give one another id." .id (ternary ", which the chart's own key has" "" (eq .id "first"))) -}}
{{- end -}}
{{- if has .hash $hashes -}}
{{- fail (printf "auth.keys: the key %s has the hash of another one: every caller has a key of its own." .id) -}}
{{- end -}}
{{- $ids = append $ids .id -}}
{{- $hashes = append $hashes .hash -}}
{{- $owners = append $owners (.tenant | default .id) -}}
{{- end -}}
{{- $named := list -}}
{{- range .Values.auth.tenants -}}
{{- if not (has .id $owners) -}}
{{- fail (printf "auth.tenants: no key belongs to tenant %s: give one of auth.keys this tenant." .id) -}}
{{- end -}}
{{- if has .id $named -}}
{{- fail (printf "auth.tenants: tenant %s is named twice." .id) -}}
{{- end -}}
{{- $named = append $named .id -}}
{{- end -}}
{{- end -}}
