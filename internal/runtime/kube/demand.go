// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"time"
)

// This file has a machine's inputs: pods that are wanted or not, and what the API server reports of the Deployment
// and of direct pods.

// wantMore adds demand for one more Start. held is the number of delivered pods that stay, waiting the number of
// Starts without a pod. A wanted pod that was not delivered yet suffices: the replacement of a removed pod, or one
// that an earlier leader asked for.
func (m *machine) wantMore(held, waiting int) {
	if int(m.want)-held-waiting < 1 {
		m.want++
	}
}

// wantLess lowers the wanted number by one before a pod or a waiting Start is removed, and reports whether it
// changed. It does not change while a rollout has surplus pods: the Deployment removes one by itself.
func (m *machine) wantLess(held, waiting int) bool {
	if held+waiting > int(m.want) || m.want == 0 {
		return false
	}
	m.want--
	return true
}

// deploymentSeen records the number of replicas of one version of the Deployment. Versions older than the last write,
// and all that arrive while a number is being written, are ignored.
func (m *machine) deploymentSeen(uid string, version uint64, replicas int32, held, waiting int) {
	if m.sending && m.uid == uid || version < m.version && version != 0 {
		return
	}
	if m.single {
		m.uid, m.version, m.written, m.want = uid, version, replicas, 0
		if m.stage == idle {
			m.direct = nil
		}
		return
	}
	if m.direct != nil && replicas == 0 {
		m.uid, m.version = uid, version // it has not adopted them
		return
	}
	// The wanted number is decided here: the one observed is old, or about to be overwritten.
	pending := m.uid == uid && (m.written != m.want || m.excess > 0)
	same := m.uid == uid && m.written == replicas
	m.uid, m.version, m.written = uid, version, replicas
	if pending || same {
		return
	}
	m.want = replicas
	// The Deployment was created again, or others have scaled it: the Starts still wait for their pods.
	if waiting > 0 {
		m.want = max(replicas, int32(held+waiting))
	}
}

// deploymentDeleted forgets the Deployment, and any sequence in progress.
func (m *machine) deploymentDeleted() {
	*m = machine{throughDeployment: m.throughDeployment, excess: m.excess, written: unknown, epoch: m.epoch + 1}
}

// podLost drops a direct pod that is leaving, or will not run again. Nothing else replaces it.
func (m *machine) podLost(uid string) {
	if dir := m.direct; dir != nil && dir.uids[uid] && !dir.announced {
		delete(dir.uids, uid)
		if m.written != unknown {
			m.written = int32(len(dir.uids))
		}
	}
}

// podFound adds a pod without a controller that this machine did not knowingly create: an earlier leader did, or a
// request whose answer was lost. inherited: the pod existed before this process.
func (m *machine) podFound(uid, hash, specHash string, inherited bool, now time.Time) {
	// Where the Deployment has pods, this one is about to be adopted, unless the former leader ended just then: handing it
	// over once more does no harm.
	if hash == "" || m.sending || m.written > 0 && m.direct == nil && !inherited {
		return
	}
	if m.direct == nil {
		// Its creator may have scaled the Deployment already.
		m.direct = &direct{hash: hash, uids: map[string]bool{}, first: now, last: now, announced: true}
	}
	dir := m.direct
	if dir.hash != hash || dir.uids[uid] {
		return
	}
	dir.uids[uid] = true
	if dir.specHash == "" {
		dir.specHash = specHash
	}
	m.written = int32(len(dir.uids))
	if inherited {
		m.want = max(m.want, m.written)
	}
}
