// SPDX-License-Identifier: Apache-2.0

// Package lifecycle decides when a service gets pods, when it loses them, and how its clients are answered in the
// meantime. It is one state machine per service, the same for every runtime: pure functions of an event and a time,
// without access to a runtime, the wire or a clock.
//
//	          WakeAsked               Listening                 IdleSeen, SleepAsked
//	Cold ───────────────▶ Waking ───────────────▶ Warm ───────────────────────────────▶ Stopping
//	  ▲                     │ StartFailed,          │ ▲                                   │ │
//	  │                     │ Exited, deadline      │ │ newer packet, or WakeAsked before │ │
//	  │                     ▼                       │ └── SIGTERM ────────────────────────┘ │
//	  │                   Failed ──▶ (next WakeAsked after the backoff: Waking)             │
//	  └─────────────────────────────────────────────┴── Exited ──────────────── StopDone ───┘
//
// A wake starts one pod, or several for a crowd of clients; Scale changes the number. While at least one pod serves,
// the service is Warm: missing pods are started, and excess pods are drained, those with the fewest open flows first.
// When the last serving pod is lost, the service is Waking again if another pod is starting, and Cold otherwise. An
// idle service first drains all its pods. They are stopped only once no gate gives any of them a new flow and no packet
// has arrived meanwhile.
//
// Frozen is Warm with all pods frozen. The machine freezes them (FreezePods) when a service has been idle for
// Spec.FreezeAfter; a daemon thaws each pod by itself when a packet needs it.
//
// On a cluster (Spec.Rolls), pods also come and go without the machine's doing (Appeared, Leaving), and nodes may be
// silent for a while (Away, Back).
//
// Machine.Step handles an event and returns actions, which the caller carries out in order. Their outcomes come back as
// further events.
//
// The package also keeps the record of each wake: Waterfall, Ring for the most recent ones, and Draw for the terminal.
package lifecycle
