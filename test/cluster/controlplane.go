// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"
)

// Names of the services of the control plane, in the order of their start.
const (
	etcdService       = "etcd"
	apiServerService  = "kube-apiserver"
	controllerService = "kube-controller-manager"
	schedulerService  = "kube-scheduler"
)

// controlMachine is the name of the machine that runs the control plane, and of its namespace on the LAN.
const controlMachine = "control"

// auditPolicyFile is the name of the file with auditPolicy.
const auditPolicyFile = "audit-policy.json"

// auditPolicy has the API server log who writes what, so that tests can count it: one line for each answered request
// that may change something, except the renewals of Leases.
var auditPolicy = map[string]any{
	"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": []string{"RequestReceived"},
	"rules": []map[string]any{
		{"level": "None", "verbs": []string{"get", "list", "watch"}},
		{"level": "None", "resources": []map[string]any{{"group": "coordination.k8s.io", "resources": []string{"leases"}}}},
		{"level": "Metadata", "verbs": []string{"create", "update", "patch", "delete", "deletecollection"}},
	},
}

// controlServices returns the services of the control plane.
func controlServices(p plan, bin string) []service {
	dir := p.machineDir(controlMachine)
	pki := func(file string) string { return filepath.Join(p.Dir, "pki", file) }
	conf := func(file string) string { return filepath.Join(p.Dir, file) }
	s := func(name string, args ...string) service {
		return service{Name: name, Argv: append([]string{filepath.Join(bin, name)}, args...), Env: programEnv(bin),
			Log: filepath.Join(dir, "log", name+".log")}
	}
	return []service{
		// Only root can enter the namespace of the loopback on which etcd listens.
		s(etcdService,
			"--name="+p.Name, "--data-dir=/var/lib/etcd",
			"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
			"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
			"--initial-cluster="+p.Name+"=http://127.0.0.1:2380",
			"--unsafe-no-fsync", "--log-level=warn", "--auto-compaction-retention=1h"),
		s(apiServerService,
			"--etcd-servers=http://127.0.0.1:2379", "--storage-media-type=application/vnd.kubernetes.protobuf",
			"--advertise-address="+p.ControlIP.String(), "--secure-port=6443",
			"--tls-cert-file="+pki("apiserver.crt"), "--tls-private-key-file="+pki("apiserver.key"),
			"--client-ca-file="+pki("ca.crt"), "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
			"--allow-privileged=true",
			"--kubelet-certificate-authority="+pki("ca.crt"),
			"--kubelet-client-certificate="+pki("apiserver-kubelet-client.crt"),
			"--kubelet-client-key="+pki("apiserver-kubelet-client.key"),
			"--kubelet-preferred-address-types=InternalIP",
			"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
			"--service-account-key-file="+pki("sa.pub"), "--service-account-signing-key-file="+pki("sa.key"),
			"--service-cluster-ip-range="+p.Services.String(),
			"--requestheader-client-ca-file="+pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
			"--requestheader-username-headers=X-Remote-User",
			"--proxy-client-cert-file="+pki("front-proxy-client.crt"), "--proxy-client-key-file="+pki("front-proxy-client.key"),
			// No kube-proxy runs here, so webhooks and aggregated APIs are called at their pods.
			"--enable-aggregator-routing=true",
			"--audit-policy-file="+conf(auditPolicyFile), "--audit-log-path="+filepath.Join(dir, "log", "audit.log"),
			"--profiling=false", "--v=0"),
		s(controllerService,
			"--kubeconfig="+conf("controller-manager.conf"), "--authentication-kubeconfig="+conf("controller-manager.conf"),
			"--authorization-kubeconfig="+conf("controller-manager.conf"), "--bind-address=127.0.0.1",
			"--use-service-account-credentials=true", "--service-account-private-key-file="+pki("sa.key"),
			"--root-ca-file="+pki("ca.crt"), "--client-ca-file="+pki("ca.crt"),
			"--requestheader-client-ca-file="+pki("front-proxy-ca.crt"),
			// Each of the four signers would watch the files of the CA: see checkInotify. makePKI creates all certificates.
			"--controllers=*,-certificatesigningrequest-signing-controller",
			"--allocate-node-cidrs=true", "--cluster-cidr="+p.Pods.String(), "--node-cidr-mask-size=24",
			"--service-cluster-ip-range="+p.Services.String(), "--cluster-name="+p.Name,
			"--flex-volume-plugin-dir=/var/lib/volumeplugins", "--leader-elect=false",
			"--horizontal-pod-autoscaler-sync-period=5s",
			"--node-monitor-period=1s", "--node-monitor-grace-period="+p.NodeGrace.String(), "--v=0"),
		s(schedulerService,
			"--kubeconfig="+conf("scheduler.conf"), "--authentication-kubeconfig="+conf("scheduler.conf"),
			"--authorization-kubeconfig="+conf("scheduler.conf"), "--bind-address=127.0.0.1", "--leader-elect=false", "--v=0"),
	}
}

func findService(all []service, name string) (service, error) {
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	return service{}, fmt.Errorf("no service %s", name)
}

// waitAPIServer waits until the API server behind a loopback port reports that it is ready.
func waitAPIServer(ctx context.Context, p plan, server string) error {
	data, err := readAll(filepath.Join(p.Dir, "pki", "ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data[0]) {
		return errors.New("pki/ca.crt holds no certificate")
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(p.Dir, "pki", "admin.crt"), filepath.Join(p.Dir, "pki", "admin.key"))
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}, DisableKeepAlives: true}}
	return poll(ctx, 100*time.Millisecond, "API server at "+server, func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(strings.ToLower(resp.Status))
		}
		return nil
	})
}

// poll calls f until it succeeds. When ctx ends before, the error names what was waited for and the last error.
func poll(ctx context.Context, every time.Duration, what string, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, ctx.Err(), err)
		case <-time.After(every):
		}
	}
}
