// SPDX-License-Identifier: Apache-2.0

// Package lifecycle decides when a service gets pods, when it loses them, and what its clients are told
// meanwhile. It is one state machine a service, the same for every runtime: pure functions of
// events and a time. It knows no runtime, no wire and no clock.
//
//	          WakeAsked               Listening                 IdleSeen, SleepAsked
//	Cold ───────────────▶ Waking ───────────────▶ Warm ───────────────────────────────▶ Stopping
//	  ▲                     │ StartFailed,          │ ▲                                   │ │
//	  │                     │ PodExited, deadline   │ │ newer packet, or WakeAsked before │ │
//	  │                     ▼                       │ └── SIGTERM ────────────────────────┘ │
//	  │                   Failed ──▶ (next WakeAsked after the backoff: Waking)             │
//	  └─────────────────────────────────────────────┴── PodExited ───────────── StopDone ───┘
//
// A service has as many pods as are wanted: one when a client wakes it, more by Scale. While one serves it is Warm,
// whatever becomes of the others: those that are missing are started, and those that are more than wanted are drained,
// the one with the fewest open flows first. When the last one that serves is lost, it is Waking again if another one
// starts, else Cold. Idle, all of them are drained; only when no gate gives any of them a new flow, and none had a packet,
// all are ended.
//
// On a cluster (Spec.Rolls) pods come and go by others' hands, too: Appeared, Leaving; and nodes may not be heard for a
// while: Away, Back.
//
// Step takes an event and returns actions, which the caller carries out in their order. Whatever
// the caller does with them comes back as another event.
//
// The package also keeps what a wake looked like: its Waterfall, a Ring of the last ones, and Draw.
package lifecycle
