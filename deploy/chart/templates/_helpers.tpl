{{- define "dra-driver.labels" -}}
app.kubernetes.io/name: dra-driver
{{- end }}

{{- define "dra-driver.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "dra-driver.imagePullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ .name }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The driver's folder below the kubelet's plugins: the same path inside and outside of containers. */}}
{{- define "dra-driver.pluginsDir" -}}
{{ .Values.kubelet.rootDir }}/plugins
{{- end }}
{{- define "dra-driver.ownDir" -}}
{{ include "dra-driver.pluginsDir" . }}/{{ .Values.driverName }}
{{- end }}

{{- /* The host's folder that is mounted at /driver-root, and the driver's root below it. */}}
{{- define "dra-driver.rootMount" -}}
{{ with .Values.driver.root }}{{ dir . }}{{ else }}/{{ end }}
{{- end }}
{{- define "dra-driver.rootInside" -}}
/driver-root/{{ base .Values.driver.root }}
{{- end }}

{{- /* A value that the template does not set itself, as an environment variable. */}}
{{- define "dra-driver.settings" -}}
{{- range $name, $value := . }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{- /* Node affinity: any one of the GPU labels, and every further expression. Called with a dict of `root` and `more`. */}}
{{- define "dra-driver.nodeAffinity" -}}
{{- $more := concat .root.Values.nodes.expressions (.more | default list) }}
{{- $labels := .root.Values.nodes.gpuLabels }}
{{- if or $labels $more }}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
    {{- range $label := $labels }}
    {{- $part := splitn "=" 2 $label }}
    - matchExpressions:
      - {key: {{ $part._0 }}, operator: In, values: [{{ $part._1 | default "true" | quote }}]}
      {{- range $more }}
      - {key: {{ .key }}, operator: {{ .operator }}{{ with .values }}, values: {{ toJson . }}{{ end }}}
      {{- end }}
    {{- else }}
    - matchExpressions:
      {{- range $more }}
      - {key: {{ .key }}, operator: {{ .operator }}{{ with .values }}, values: {{ toJson . }}{{ end }}}
      {{- end }}
    {{- end }}
{{- end }}
{{- end }}
