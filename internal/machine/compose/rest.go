// SPDX-License-Identifier: Apache-2.0

package compose

import (
	"fmt"
	"maps"
	"slices"

	"github.com/compose-spec/compose-go/v2/types"
)

// unused is a field of the Compose file that were not translated.
type unused struct {
	field string
	set   bool
	why   string
}

func (t *translation) note(fields []unused) {
	for _, f := range fields {
		if f.set {
			t.lost(f.field, "%s", f.why)
		}
	}
}

// rest notes the fields that were not translated. Not noted are those that only docker compose uses (attach, develop),
// and restart: a process that ends is started again by the next connection.
func (t *translation) rest() {
	s := t.service
	t.note(restOfProgram(s))
	t.note(restOfMachine(s))
	if d := s.Deploy; d != nil {
		t.note(restOfDeploy(d))
	}
	for _, name := range slices.Sorted(maps.Keys(s.DependsOn)) {
		if c := s.DependsOn[name].Condition; c == types.ServiceConditionCompletedSuccessfully {
			t.lost("depends_on", "%s does not run to completion first: run it by hand", name)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(s.Networks)) {
		c := s.Networks[n]
		if c == nil {
			continue
		}
		if len(c.Aliases) > 0 {
			t.lost("networks", "aliases are not names of the service: %s", fmt.Sprint(c.Aliases))
		}
		if c.Ipv4Address != "" || c.Ipv6Address != "" {
			t.lost("networks", "the address in %s is chosen by Wangell: spec.address sets that of the service", n)
		}
	}
}

// restOfProgram are fields about the program, its name and its files.
func restOfProgram(s *types.ServiceConfig) []unused {
	return []unused{
		{"build", s.Build != nil, "the image is not built: do so with another tool, and load it with 'wangell image load'"},
		{"provider", s.Provider != nil, "providers are not run"},
		{"models", len(s.Models) > 0, "models are not run"},
		{"links", len(s.Links) > 0, "services are reached by their own names"},
		{"external_links", len(s.ExternalLinks) > 0, "services are reached by their own names"},
		{"container_name", s.ContainerName != "" && s.ContainerName != s.Name,
			"others reach the service by its own name alone"},
		{"hostname", s.Hostname != "" && s.Hostname != s.Name, "it is the name of the service"},
		{"domainname", s.DomainName != "", "names of services end in .svc.cluster.local"},
		{"volumes_from", len(s.VolumesFrom) > 0, "write the volumes"},
		{"volume_driver", s.VolumeDriver != "", "folders of this machine are used"},
		{"logging", s.Logging != nil && s.Logging.Driver != "", whyLogs},
		{"log_driver", s.LogDriver != "", whyLogs},
		{"log_opt", len(s.LogOpt) > 0, whyLogs},
		{"tty", s.Tty, "there is no terminal"},
		{"stdin_open", s.StdinOpen, "there is no terminal"},
		{"pre_start", len(s.PreStart) > 0, whyHooks},
		{"post_start", len(s.PostStart) > 0, whyHooks},
		{"pre_stop", len(s.PreStop) > 0, whyHooks},
		{"group_add", len(s.GroupAdd) > 0, "groups are those of the image"},
		{"umask", s.Umask != nil, "it is 0022"},
		{"labels", len(s.Labels) > 0, "write metadata.labels"},
		{"annotations", len(s.Annotations) > 0, "write metadata.annotations"},
		{"use_api_socket", s.UseAPISocket, "there is no such socket"},
		{"pull_refresh_after", s.PullRefreshAfter != "", "the image is pulled if it is missing"},
	}
}

// Why several fields are not taken over.
const (
	whyLogs    = "logs are files in the state folder: wangell logs"
	whyHooks   = "hooks are not run"
	whyNetwork = "each pod has a network of its own"
	whyDNS     = "see wangell up --resolv-conf"
	whyDevices = "pods get no devices unless they are privileged"
	whySpaces  = "namespaces are the pod's own"
	whyCPUs    = "write cpus"
	whySwap    = "swap is not limited"
	whyOOM     = "the kernel chooses what it ends when memory is short"
)

// limits are the ulimits of a service; each is a field of its own.
func limits(s *types.ServiceConfig) (list []unused) {
	for _, name := range slices.Sorted(maps.Keys(s.Ulimits)) {
		why := "it is the machine's default"
		if name == "nofile" {
			why = "the limit of open files is 65536"
		}
		list = append(list, unused{"ulimits." + name, true, why})
	}
	return list
}

// restOfMachine are fields about the kernel, the network and limits.
func restOfMachine(s *types.ServiceConfig) []unused {
	return append(limits(s), []unused{
		{"network_mode", s.NetworkMode != "" && hostOf(s) == "", whyNetwork},
		{"net", s.Net != "", whyNetwork},
		{"extra_hosts", len(s.ExtraHosts) > 0, "names are those of services and of the machine's resolver"},
		{"dns", len(s.DNS) > 0, whyDNS},
		{"dns_search", len(s.DNSSearch) > 0, whyDNS},
		{"dns_opt", len(s.DNSOpts) > 0, whyDNS},
		{"mac_address", s.MacAddress != "", "the kernel chooses it"},
		{"devices", len(s.Devices) > 0, whyDevices},
		{"gpus", len(s.Gpus) > 0, whyDevices},
		{"device_cgroup_rules", len(s.DeviceCgroupRules) > 0, whyDevices},
		{"sysctls", len(s.Sysctls) > 0, "they are those of a new network namespace"},
		{"security_opt", slices.ContainsFunc(s.SecurityOpt, func(o string) bool { return !isNoNewPrivileges(o) }),
			"the default seccomp profile is used"},
		{"credential_spec", s.CredentialSpec != nil, "it is for Windows"},
		{"isolation", s.Isolation != "", "it is for Windows"},
		{"shm_size", s.ShmSize > 0, "/dev/shm has 64 MiB: mount an emptyDir with medium: Memory there"},
		{"pid", s.Pid != "", whySpaces},
		{"ipc", s.Ipc != "", whySpaces},
		{"uts", s.Uts != "", whySpaces},
		{"userns_mode", s.UserNSMode != "", whySpaces},
		{"cgroup", s.Cgroup != "", whySpaces},
		{"cgroup_parent", s.CgroupParent != "", "it is Wangell's own"},
		{"platform", s.Platform != "", "the machine's own is used"},
		{"runtime", s.Runtime != "", "runc is used"},
		{"pids_limit", s.PidsLimit > 0, "there is no limit of processes"},
		{"cpuset", s.CPUSet != "", whyCPUs},
		{"cpu_shares", s.CPUShares > 0, whyCPUs},
		{"cpu_quota", s.CPUQuota > 0, whyCPUs},
		{"cpu_period", s.CPUPeriod > 0, whyCPUs},
		{"cpu_count", s.CPUCount > 0, whyCPUs},
		{"cpu_percent", s.CPUPercent > 0, whyCPUs},
		{"cpu_rt_period", s.CPURTPeriod > 0, whyCPUs},
		{"cpu_rt_runtime", s.CPURTRuntime > 0, whyCPUs},
		{"memswap_limit", s.MemSwapLimit > 0, whySwap},
		{"mem_swappiness", s.MemSwappiness > 0, whySwap},
		{"oom_score_adj", s.OomScoreAdj != 0, whyOOM},
		{"oom_kill_disable", s.OomKillDisable, whyOOM},
		{"blkio_config", s.BlkioConfig != nil, "access to disks is not limited"},
		{"storage_opt", len(s.StorageOpt) > 0, "see spec.layer.sizeLimit"},
	}...)
}

// restOfDeploy are fields of deploy that are neither limits nor a number of replicas.
func restOfDeploy(d *types.DeployConfig) []unused {
	list := []unused{
		{"deploy.mode", d.Mode != "" && d.Mode != "replicated", "it is a service with one pod"},
		{"deploy.labels", len(d.Labels) > 0, "write metadata.labels"},
		{"deploy.placement", len(d.Placement.Constraints)+len(d.Placement.Preferences) > 0, "there is one machine"},
		{"deploy.update_config", d.UpdateConfig != nil, "see spec.updateStrategy"},
		{"deploy.rollback_config", d.RollbackConfig != nil, "see spec.updateStrategy"},
	}
	for _, r := range []*types.Resource{d.Resources.Limits, d.Resources.Reservations} {
		if r != nil {
			list = append(list,
				unused{"deploy.resources.pids", r.Pids > 0, "there is no limit of processes"},
				unused{"deploy.resources.devices", len(r.Devices)+len(r.GenericResources) > 0,
					whyDevices})
		}
	}
	return list
}
