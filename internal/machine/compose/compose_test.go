// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/types"

	"wangell.loutres.me/internal/machine/manifest"
)

// translate translates Compose files and returns the manifests and the notes.
func translate(t *testing.T, files map[string]string, names ...string) (string, []string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var o Options
	for _, n := range names {
		o.Files = append(o.Files, filepath.Join(dir, n))
	}
	project, err := Load(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	services, notes, err := Translate(project, o)
	var text bytes.Buffer
	if writeErr := Write(&text, services); writeErr != nil {
		t.Fatal(writeErr)
	}
	var lines []string
	for _, n := range notes {
		lines = append(lines, n.String())
	}
	return strings.ReplaceAll(text.String(), dir, "DIR"), lines, err
}

const web = `name: shop
services:
  web:
    image: example.com/web:${TAG}
    ports: ["8080:80", "8443:443"]
    entrypoint: ["/bin/web"]
    command: ["--verbose"]
    environment: {DB: "postgres://db", EMPTY: ""}
    env_file: web.env
    depends_on: [db]
    user: "1000:1001"
    read_only: true
    cap_drop: [ALL]
    stop_grace_period: 1500ms
    deploy: {resources: {limits: {cpus: "0.5", memory: 64M}}}
    healthcheck: {test: curl -f localhost, interval: 5s, retries: 2}
    volumes: ["./conf:/etc/web:ro", "data:/var/lib/web"]
    secrets: [key]
    tmpfs: /tmp
    shm_size: 128m
  db:
    image: postgres:16
volumes: {data: {}}
secrets: {key: {file: ./key}}
`

const want = `apiVersion: wangell.loutres.me/v1alpha1
kind: WangellService
metadata:
  name: db
spec:
  image: postgres:16
  port: 5432
---
apiVersion: wangell.loutres.me/v1alpha1
kind: WangellService
metadata:
  name: web
spec:
  args:
  - --verbose
  command:
  - /bin/web
  env:
  - name: DB
    value: postgres://db
  - name: EMPTY
  - name: FROM_FILE
    value: "yes"
  image: example.com/web:v7
  ports:
  - hostPort: 8080
    name: http
    port: 80
  - hostPort: 8443
    name: https
    port: 443
  readinessProbe:
    exec:
      command:
      - /bin/sh
      - -c
      - curl -f localhost
    failureThreshold: 2
    periodSeconds: 5
    timeoutSeconds: 30
  readyWhen: Probe
  resources:
    limits:
      cpu: 500m
      memory: 64Mi
  securityContext:
    capabilities:
      drop:
      - ALL
    readOnlyRootFilesystem: true
    runAsGroup: 1001
    runAsUser: 1000
  terminationGracePeriodSeconds: 2
  volumeMounts:
  - mountPath: /etc/web
    name: v0
    readOnly: true
  - mountPath: /var/lib/web
    name: v1
  - mountPath: /run/secrets/key
    name: v3
    readOnly: true
  - mountPath: /tmp
    name: v2
  volumes:
  - hostPath:
      path: DIR/conf
      type: DirectoryOrCreate
    name: v0
  - name: v1
    persistent:
      name: shop.data
  - emptyDir:
      medium: Memory
    name: v2
  - hostPath:
      path: DIR/key
      type: File
    name: v3
`

func TestComposeFileBecomesManifests(t *testing.T) {
	got, notes, err := translate(t, map[string]string{
		"compose.yaml": web, ".env": "TAG=v7\n", "web.env": "FROM_FILE=yes\n",
	}, "compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	sorted := func(text string) string { // lists of mounts keep their order in got, which is that of the volumes
		lines := strings.Split(text, "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	if sorted(got) != sorted(want) {
		t.Errorf("got\n%s", got)
	}
	wantNotes(t, notes, "services.db.expose: port 5432 is assumed",
		"/dev/shm has 64 MiB", "data is the volume shop.data",
		"services.db.image: files that it writes are lost when it sleeps")
	if len(notes) != 4 {
		t.Errorf("notes: %q", notes)
	}
	// wangell up takes what was written.
	file := filepath.Join(t.TempDir(), "services.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(got, "DIR/", "/srv/")), 0o600); err != nil {
		t.Fatal(err)
	}
	if set, err := manifest.NewReader([]string{file}, nil).Load(t.Context()); err != nil || len(set) != 2 {
		t.Errorf("%d services, %v", len(set), err)
	}
}

func TestLaterFilesOverride(t *testing.T) {
	got, _, err := translate(t, map[string]string{
		"a.yaml": "services: {web: {image: 'example.com/web:1', expose: ['80']}}",
		"b.yaml": "services: {web: {image: 'example.com/web:2'}}",
	}, "a.yaml", "b.yaml")
	if err != nil || !strings.Contains(got, "image: example.com/web:2") || !strings.Contains(got, "port: 80") {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestMissingFileIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "none.yaml")
	_, err := Load(t.Context(), Options{Files: []string{file}})
	want := "compose file " + file + ": no such file: check the path"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestServicesThatCannotBeAreLeftOut(t *testing.T) {
	got, notes, err := translate(t, map[string]string{"compose.yaml": `
services:
  built: {build: .}
  worker: {image: 'example.com/worker:1'}
  Big_Name: {image: 'example.com/big:1', ports: ["53:53/udp", "127.0.0.1:9000:9000"]}
`}, "compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(got, "kind:") != 1 || !strings.Contains(got, "name: big-name") ||
		!strings.Contains(got, "hostAddress: 127.0.0.1") {
		t.Errorf("got\n%s", got)
	}
	wantNotes(t, notes, "services.built.build: the service is left out",
		"services.worker.expose: the service is left out", "port 53/udp is not served",
		"becomes big-name")
	_, _, err = translate(t, map[string]string{"compose.yaml": "services: {a: {build: .}}"}, "compose.yaml")
	if err == nil {
		t.Error("nothing was translated, and that is no error")
	}
}

func TestUpstreamsThatWereLeftOutAreNoted(t *testing.T) {
	_, notes, err := translate(t, map[string]string{"compose.yaml": `
services:
  app: {build: .}
  guest: {image: 'example.com/guest:1', network_mode: 'service:app', depends_on: [api]}
  api: {image: 'example.com/api:1'}
  tool: {image: 'example.com/tool:1', expose: ["80"], profiles: [debug]}
  migrate: {build: .}
  web: {image: 'nginx:1', depends_on: [app, db]}
  linked: {image: 'nginx:1', links: ["app:backend", db]}
  proxy: {image: 'caddy:2', command: [caddy, reverse-proxy, --to, "api:8000"]}
  traefik: {image: 'traefik:3', environment: {TRACES: "http://tool:4318/v1", DB: "postgres://u@db/shop"}}
  side: {image: 'example.com/side:1', network_mode: 'service:web', environment: {API: 'https://u:p@api/v1'}}
  other:
    image: 'nginx:1'
    environment: {USER: app, HOST: "http://myapp:80", FILE: "http://cdn.example.com/app:latest", SELF: "other:80"}
    depends_on: {migrate: {condition: service_completed_successfully}}
  db: {image: 'postgres:16'}
`}, "compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range notes {
		if where, what, found := strings.Cut(n, " is left out, so what "); found {
			got = append(got, where)
			if front := strings.Split(where, ".")[1]; !strings.HasPrefix(what, front+" asks of it fails: ") {
				t.Errorf("%s: it is about another service: %s", where, what)
			}
		}
	}
	want := []string{"services.linked.links: app", "services.proxy.command: api", "services.side.environment: api",
		"services.traefik.environment: tool", "services.web.depends_on: app"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q\nall: %q", got, want, notes)
	}
	wantNotes(t, notes, "services.guest.network_mode: the service is left out with app, whose network it shares")
}

func TestServicesThatShareANetworkBecomeOnePod(t *testing.T) {
	got, notes, err := translate(t, map[string]string{"compose.yaml": `name: shop
services:
  web: {image: 'example.com/web:1', expose: ['80'], volumes: ['data:/var/lib/web']}
  cache:
    image: redis:8
    network_mode: service:web
    stop_signal: SIGINT
    mem_limit: 64m
    volumes: ['data:/data:ro']
    tmpfs: /tmp
  stray: {image: 'example.com/stray:1', network_mode: 'service:cache'}
volumes: {data: {}}
`}, "compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(got, "kind:") != 1 || !strings.Contains(got, `  containers:
  - image: redis:8
    name: cache
    resources:
      limits:
        memory: 64Mi
    volumeMounts:
    - mountPath: /data
      name: v0
      readOnly: true
    - mountPath: /tmp
      name: cache-v1
`) {
		t.Errorf("got\n%s", got)
	}
	wantNotes(t, notes, "services.cache.network_mode: becomes a container of web",
		"services.cache.stop_signal: the signal of the image is used",
		"services.stray.network_mode: the service is left out")
}

// wantNotes fails the test unless each part is in one of the notes.
func wantNotes(t *testing.T, notes []string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, part) }) {
			t.Errorf("no note %q: %q", part, notes)
		}
	}
}

// A file without an extension, such as a Caddyfile, is not to be a folder; nor is one that is missing and has one.
func TestFilesAreMountedAsSuch(t *testing.T) {
	got, notes, err := translate(t, map[string]string{"compose.yaml": `
services:
  web:
    image: example.com/web:1
    expose: ["80"]
    volumes: ["./Caddyfile:/etc/caddy/Caddyfile", "./none.conf:/etc/none.conf", "./data:/data"]
    secrets: [{source: key, mode: 0400}]
secrets: {key: {file: ./key}}
`, "Caddyfile": "", "key": ""}, "compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const folder = "      type: DirectoryOrCreate\n"
	for path, kind := range map[string]string{"Caddyfile": "", "none.conf": "", "data": folder} {
		if !strings.Contains(got, "path: DIR/"+path+"\n"+kind+"    name:") {
			t.Errorf("%s is not mounted with %q:\n%s", path, kind, got)
		}
	}
	wantNotes(t, notes, "none.conf is missing: create it", "owner and mode of key")
}

// What Wangell would expand in a manifest is what a shell in the container is to expand.
func TestVariablesOfShellsAreKept(t *testing.T) {
	got, _, err := translate(t, map[string]string{"compose.yaml": `
services:
  web:
    image: example.com/web:1
    expose: ["80"]
    command: ["sh", "-c", "echo $$HOME $$$$ $$(date)"]
    environment: {A: "$$(B)", B: "p$$ss"}
`}, "compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"- echo $$HOME $$$$ $$(date)", "value: $$(B)", "value: p$ss"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestIsolationOfAProjectIsKeptOrNoted(t *testing.T) {
	got, notes, err := translate(t, map[string]string{"compose.yaml": `
services:
  web:
    image: example.com/web:1
    expose: ["80"]
    security_opt: ["no-new-privileges:true"]
    ulimits: {nofile: 1000, core: 0}
    userns_mode: host
    networks: [back]
  other:
    image: example.com/other:1
    expose: ["80"]
    security_opt: ["seccomp:unconfined"]
networks: {back: {internal: true}, default: {internal: true}}
`}, "compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(got, "allowPrivilegeEscalation: false") != 1 {
		t.Errorf("got\n%s", got)
	}
	wantNotes(t, notes, "networks.back.internal: its services reach other networks", "networks.default.internal: ",
		"services.other.security_opt: ", "services.web.ulimits.nofile: ", "services.web.ulimits.core: ",
		"services.web.userns_mode: ")
	for _, n := range notes {
		if strings.HasPrefix(n, "services.web.security_opt") {
			t.Errorf("%s: it was taken over", n)
		}
	}
}

func TestOneBadServiceLeavesTheOthers(t *testing.T) {
	got, notes, err := translate(t, map[string]string{"compose.yaml": `
services:
  a: {image: 'example.com/aa:1', ports: ["80:80"]}
  b: {image: 'example.com/bb:1', ports: ["127.0.0.1:80:80"]}
  tiny: {image: 'example.com/tiny:1', expose: ["80"], mem_limit: 1m, cap_add: [NONE]}
  tool: {image: 'example.com/tool:1', expose: ["80"], profiles: [debug, all]}
  slow: {image: 'example.com/slow:1', expose: ["80"], healthcheck: {test: "true", start_period: 2m}}
`}, "compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(got, "kind:") != 3 || strings.Count(got, "hostPort: 80") != 1 ||
		!strings.Contains(got, "wakeTimeout: 120") {
		t.Errorf("got\n%s", got)
	}
	wantNotes(t, notes,
		"services.tiny: the service is left out: spec.resources.limits[memory]: 1Mi is less than",
		"spec.securityContext.capabilities.add[0]", "services.b.ports: port 80 is not published",
		"--profile debug or --profile all enables it")
}

// Whatever a Compose file says of a service is in the manifest, or in the list.
func TestEachFieldOfAServiceIsTakenOverOrNoted(t *testing.T) {
	elsewhere := []string{
		"Name", "Profiles", "Extends", "EnvFiles", "CustomLabels", "LabelFiles", "Extensions", "Dockerfile", // the loader
		"Attach", "Develop", "Restart", // see rest
		"DependsOn", "Networks", "StdinOpen", "EndpointMode", "RestartPolicy",
	}
	var last []Note
	outcome := func(s types.ServiceConfig) string {
		s.Name = "web"
		p := &types.Project{Name: "shop", Services: types.Services{"web": s}}
		services, notes, err := Translate(p, Options{})
		var text bytes.Buffer
		if writeErr := Write(&text, services); writeErr != nil {
			t.Fatal(writeErr)
		}
		last = notes
		return fmt.Sprintln(text.String(), notes, err)
	}
	base := types.ServiceConfig{}
	base.Image, base.Expose = "example.com/web:1", types.StringOrNumberList{"80"}
	before := outcome(base)
	check := func(what reflect.StructField, prefix string, s types.ServiceConfig) {
		if outcome(s) == before {
			t.Errorf("%s: neither in the manifest nor in the list", what.Name)
		}
		name, _, _ := strings.Cut(what.Tag.Get("yaml"), ",")
		for _, n := range last { // by the name that the user has written
			of := strings.TrimPrefix(n.Field, prefix)
			if n.Lost && name != "" && of != "" && of != name && !strings.HasPrefix(of, name+".") {
				t.Errorf("%s%s: the note is about %s: %s", prefix, name, n.Field, n.Text)
			}
		}
	}
	for _, part := range []func(*types.ServiceConfig) any{
		func(s *types.ServiceConfig) any { return s }, func(s *types.ServiceConfig) any { return &s.ContainerSpec },
		func(s *types.ServiceConfig) any { return &s.WorkloadSpec },
		func(s *types.ServiceConfig) any { s.Deploy = &types.DeployConfig{}; return s.Deploy },
	} {
		for i := range reflect.TypeOf(part(&base)).Elem().NumField() {
			s := base
			s.Deploy = nil
			v := reflect.ValueOf(part(&s)).Elem()
			f := v.Type().Field(i)
			if f.Anonymous || slices.Contains(elsewhere, f.Name) {
				continue
			}
			fill(v.Field(i))
			prefix := ""
			if s.Deploy != nil && v.Type() == reflect.TypeFor[types.DeployConfig]() {
				prefix = "deploy."
			}
			check(f, prefix, s)
		}
	}
}

// fill sets a value, and all that it has, to something.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		if value.Kind() != reflect.Interface {
			fill(value)
		}
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Name != "Extensions" && f.Name != "Disable" {
				fill(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString("7")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(77 << 20)
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		v.SetUint(77)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(7)
	}
}

// A port is published at no more addresses than the project asks for.
func TestPortsArePublishedAtTheAddressOfTheProject(t *testing.T) {
	for _, c := range []struct{ ports, address, note string }{
		{`["6379:6379"]`, "", ""},
		{`["0.0.0.0:6379:6379"]`, "", ""},
		{`["127.0.0.1:6379:6379"]`, "127.0.0.1", ""},
		{`[{target: 6379, published: "6379", host_ip: 192.168.1.5}]`, "192.168.1.5", ""},
		{`["[::1]:6379:6379"]`, "none", "port 6379 is not published at the machine: ::1 is not an IPv4 address"},
		{`["[::]:6379:6379"]`, "none", "port 6379 is not published at the machine: :: is not an IPv4 address"},
		{`["127.0.0.1:6379:6379", "[::1]:6379:6379"]`, "127.0.0.1", "port 6379 of the service is published once"},
		{`["[::1]:6379:6379", "127.0.0.1:6379:6379"]`, "127.0.0.1", "::1 is not an IPv4 address"},
	} {
		got, notes, err := translate(t, map[string]string{
			"compose.yaml": "services:\n  a: {read_only: true, image: 'example.com/aa:1', ports: " + c.ports + "}\n",
		}, "compose.yaml")
		if err != nil {
			t.Errorf("%s: %v", c.ports, err)
			continue
		}
		_, rest, _ := strings.Cut(got, "hostAddress: ")
		address, _, _ := strings.Cut(rest, "\n")
		if !strings.Contains(got, "hostPort: 6379\n") {
			address = "none"
		}
		if address != c.address || !strings.Contains(got, "  port: 6379\n") {
			t.Errorf("%s: at address %q, want %q:\n%s", c.ports, address, c.address, got)
		}
		if c.note == "" && len(notes) > 0 {
			t.Errorf("%s: notes %q", c.ports, notes)
		}
		if c.note != "" && !strings.Contains(strings.Join(notes, "\n"), c.note) {
			t.Errorf("%s: notes %q, want %q", c.ports, notes, c.note)
		}
	}
	got, _, err := translate(t, map[string]string{"compose.yaml": `
services:
  a: {image: 'example.com/aa:1', ports: ["127.0.0.1:80:80"]}
  b: {image: 'example.com/bb:1', ports: ["127.0.0.2:80:80"]}
`}, "compose.yaml")
	if err != nil || strings.Count(got, "hostPort: 80") != 2 {
		t.Errorf("one port at two addresses: %v\n%s", err, got)
	}
}

// Compose keeps volumes without a name with the container of the service.
func TestVolumesWithoutANameAreKept(t *testing.T) {
	got, notes, err := translate(t, map[string]string{"compose.yaml": "name: shop\nservices:\n" +
		"  db: {image: postgres:16, volumes: [/var/lib/postgresql/data, /logs]}\n"}, "compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name: shop.db.image.logs\n", "name: shop.db.image.var-lib-postgresql-data\n"} {
		if !strings.Contains(got, "persistent:\n      "+want) {
			t.Errorf("no volume %q in\n%s", want, got)
		}
	}
	wantNotes(t, notes, "/logs is the volume shop.db.image.logs: it begins empty")
}
