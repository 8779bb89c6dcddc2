{{/* Merges two values, the second over the first: (first, second). Lists are merged by `name`. As JSON: {"value": …}. */}}
{{- define "slurm.vendor.merge" -}}
{{- $first := index . 0 -}}
{{- $second := index . 1 -}}
{{- if and (kindIs "map" $first) (kindIs "map" $second) -}}
{{- $all := deepCopy $first -}}
{{- range $key, $value := $second -}}
{{- $_ := set $all $key (hasKey $first $key | ternary (fromJson (include "slurm.vendor.merge" (list (get $first $key) $value))).value $value) -}}
{{- end -}}
{{- toJson (dict "value" $all) -}}
{{- else if and (kindIs "slice" $first) (kindIs "slice" $second) -}}
{{- $all := list -}}
{{- $merged := list -}}
{{- range $item := $first -}}
{{- range $second -}}
{{- if and (kindIs "map" .) (kindIs "map" $item) .name (eq .name (get $item "name")) -}}
{{- $item = (fromJson (include "slurm.vendor.merge" (list $item .))).value -}}
{{- $merged = append $merged .name -}}
{{- end -}}
{{- end -}}
{{- $all = append $all $item -}}
{{- end -}}
{{- range $second -}}
{{- if not (and (kindIs "map" .) .name (has .name $merged)) -}}
{{- $all = append $all . -}}
{{- end -}}
{{- end -}}
{{- toJson (dict "value" $all) -}}
{{- else -}}
{{- toJson (dict "value" (kindIs "invalid" $second | ternary $first $second)) -}}
{{- end -}}
{{- end }}

{{/* The values of a NodeSet with what vendors need: (root, name, nodeset). As JSON. */}}
{{- define "slurm.vendor.nodeset" -}}
{{- $nodeset := .nodeset -}}
{{- range list "dcgm" "a3mega" "a3ultra" -}}
{{- with fromYaml (include (printf "slurm.vendor.%s" .) $) -}}
{{- $nodeset = (fromJson (include "slurm.vendor.merge" (list $nodeset .))).value -}}
{{- end -}}
{{- end -}}
{{- toJson $nodeset -}}
{{- end }}

{{/* Whether a NodeSet has GPUs of NVIDIA. */}}
{{- define "slurm.vendor.hasGpu" -}}
{{- range list (default dict .slurmd) (default dict .podSpec) -}}
{{- range list (dig "resources" "limits" nil .) (dig "resources" "requests" nil .) -}}
{{- if get (default dict .) "nvidia.com/gpu" }}true{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "slurm.vendor.dcgm" -}}
{{- with .root.Values.vendor.nvidia.dcgm -}}
{{- if and .enabled (include "slurm.vendor.hasGpu" $.nodeset) -}}
slurmd:
  volumeMounts:
    - name: dcgm-job-mapping
      mountPath: {{ .jobMappingDir }}
podSpec:
  volumes:
    - name: dcgm-job-mapping
      hostPath: {path: {{ .jobMappingDir }}, type: DirectoryOrCreate}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The entry of vendor.google that is for a NodeSet: (root, name, machine). As JSON. */}}
{{- define "slurm.vendor.google" -}}
{{- $entry := dict -}}
{{- range $index, $value := index .root.Values.vendor.google .machine -}}
{{- if ne (len (default list .networks)) 9 -}}
{{- fail (printf "vendor.google.%s[%d].networks has %d networks: GKE needs exactly 9, the network of the cluster first" $.machine $index (len (default list .networks))) -}}
{{- end -}}
{{- if not (has .targetNodeSet (keys $.root.Values.nodesets)) -}}
{{- fail (printf "vendor.google.%s[%d].targetNodeSet is %q, which is not an entry of nodesets" $.machine $index (toString .targetNodeSet)) -}}
{{- end -}}
{{- if eq .targetNodeSet $.name }}{{ $entry = $value }}{{ end -}}
{{- end -}}
{{- toJson $entry -}}
{{- end }}

{{- define "slurm.vendor.a3mega" -}}
{{- with fromJson (include "slurm.vendor.google" (merge (dict "machine" "a3mega") .)) -}}
{{- $interfaces := list -}}
{{- range $index, $network := .networks -}}
{{- $interfaces = append $interfaces (dict "interfaceName" (printf "eth%d" $index) "network" $network) -}}
{{- end -}}
{{- $devices := list -}}
{{- range list "nvidia0" "nvidia1" "nvidia2" "nvidia3" "nvidia4" "nvidia5" "nvidia6" "nvidia7" "nvidiactl" "nvidia-uvm" "dmabuf_import_helper" -}}
{{- $devices = append $devices (dict "path" (printf "/dev/%s" .)) -}}
{{- end -}}
extraConfMap:
  Gres: gpu:nvidia_h100_80gb_hbm3:8
metadata:
  annotations:
    devices.gke.io/container.tcpxo-daemon: {{ toYaml $devices | quote }}
    networking.gke.io/default-interface: eth0
    networking.gke.io/interfaces: {{ toJson $interfaces | quote }}
slurmd:
  env:
    - {name: LD_LIBRARY_PATH, value: /usr/local/nvidia/lib64}
    - {name: NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY, value: /dev/aperture_devices}
  resources:
    limits: {nvidia.com/gpu: 8}
    requests: {nvidia.com/gpu: 8}
  volumeMounts:
    - {name: aperture-devices, mountPath: /dev/aperture_devices}
podSpec:
  nodeSelector:
    cloud.google.com/gke-nodepool: {{ .nodePool | quote }}
  containers:
    # Google's daemon for GPUDirect-TCPXO.
    - name: tcpxo-daemon
      image: us-docker.pkg.dev/gce-ai-infra/gpudirect-tcpxo/tcpgpudmarxd-dev:v1.0.21
      imagePullPolicy: Always
      command: [/bin/sh, -c]
      args:
        - |
          set -ex
          chmod 755 /fts/entrypoint_rxdm_container.sh
          /fts/entrypoint_rxdm_container.sh --num_hops=2 --num_nics=8 --uid= --alsologtostderr
      env:
        - {name: LD_LIBRARY_PATH, value: /usr/local/nvidia/lib64}
      securityContext:
        capabilities: {add: [NET_ADMIN, NET_BIND_SERVICE]}
      volumeMounts:
        - {name: libraries, mountPath: /usr/local/nvidia/lib64}
        - {name: sys, mountPath: /hostsysfs}
        - {name: proc-sys, mountPath: /hostprocsysfs}
  volumes:
    - {name: libraries, hostPath: {path: /home/kubernetes/bin/nvidia/lib64}}
    - {name: sys, hostPath: {path: /sys}}
    - {name: proc-sys, hostPath: {path: /proc/sys}}
    - {name: aperture-devices, hostPath: {path: /dev/aperture_devices}}
{{- end -}}
{{- end }}

{{- define "slurm.vendor.a3ultra" -}}
{{- with fromJson (include "slurm.vendor.google" (merge (dict "machine" "a3ultra") .)) -}}
{{- $interfaces := list -}}
{{- range $index, $network := .networks -}}
{{- /* GKE calls the second network eth2. */ -}}
{{- $interfaces = append $interfaces (dict "interfaceName" (printf "eth%d" (eq $index 0 | ternary 0 (add $index 1))) "network" $network) -}}
{{- end -}}
extraConfMap:
  Gres: gpu:nvidia_h200:8
metadata:
  annotations:
    networking.gke.io/default-interface: eth0
    networking.gke.io/interfaces: {{ toJson $interfaces | quote }}
slurmd:
  env:
    - {name: LD_LIBRARY_PATH, value: /usr/local/nvidia/lib64}
    - {name: PATH, value: "/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
  resources:
    limits: {nvidia.com/gpu: 8}
    requests: {nvidia.com/gpu: 8}
  volumeMounts:
    - {name: library-dir-host, mountPath: /usr/local/nvidia}
    - {name: gib, mountPath: /usr/local/gib}
podSpec:
  nodeSelector:
    cloud.google.com/gke-nodepool: {{ .nodePool | quote }}
  volumes:
    - {name: library-dir-host, hostPath: {path: /home/kubernetes/bin/nvidia}}
    - {name: gib, hostPath: {path: /home/kubernetes/bin/gib}}
    - {name: sys, hostPath: {path: /sys}}
    - {name: proc-sys, hostPath: {path: /proc/sys}}
{{- end -}}
{{- end }}

{{/* The ConfigMaps with a gres.conf for vendor.google, unless the values have one. As JSON. */}}
{{- define "slurm.vendor.gresConf" -}}
{{- $names := list -}}
{{- if not (hasKey (default dict .Values.configFiles) "gres.conf") -}}
{{- range list "a3mega" "a3ultra" -}}
{{- if and (index $.Values.vendor.google .) (not $names) -}}
{{- $names = append $names (printf "%s-config-%s" (include "slurm.fullname" $) .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $names -}}
{{- end }}
