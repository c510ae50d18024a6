// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// signals are the names of signal(7) without SIG, by number; equal on all architectures that Wangell runs on.
var signals = strings.Fields(`
	- HUP INT QUIT ILL TRAP ABRT BUS FPE KILL USR1 SEGV USR2 PIPE ALRM TERM STKFLT CHLD CONT STOP TSTP TTIN TTOU URG XCPU
	XFSZ VTALRM PROF WINCH IO PWR SYS`)

// signalAliases are other names of signals.
var signalAliases = map[string]int32{"IOT": 6, "POLL": 29}

// Numbers of real-time signals, as the C library counts them: it keeps 32 and 33 for itself.
const (
	signalRTMin = 34
	signalRTMax = 64
	// rtMiddle is the last one that is named from SIGRTMIN on, as kill -l names it.
	rtMiddle = signalRTMin + 15
)

// ParseSignal returns the number of a signal, which is written as a number or as a name in capitals with or without
// SIG: "15", "TERM", "SIGRTMIN+3", "RTMAX-1". The numbers 32 and 33 belong to the C library and are refused.
func ParseSignal(text string) (int32, error) {
	n, err := strconv.Atoi(text)
	if err == nil && text == strconv.Itoa(n) && n <= signalRTMax && SignalName(int32(n)) != "" {
		return int32(n), nil
	}
	name := strings.TrimPrefix(text, "SIG")
	if n := slices.Index(signals, name); n > 0 {
		return int32(n), nil
	}
	if n, ok := signalAliases[name]; ok {
		return n, nil
	}
	for n := int32(signalRTMin); n <= signalRTMax; n++ {
		if name == rtName(n) {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%q is not a signal", text)
}

// SignalName returns the name of the signal with a number from 1 to 64, as Kubernetes writes it: "SIGTERM",
// "SIGRTMIN+3". It is empty for the numbers 32 and 33, which have none.
func SignalName(n int32) string {
	switch {
	case n > 0 && int(n) < len(signals):
		return "SIG" + signals[n]
	case n >= signalRTMin && n <= signalRTMax:
		return "SIG" + rtName(n)
	}
	return ""
}

// rtName returns the name of a real-time signal without SIG.
func rtName(n int32) string {
	switch {
	case n == signalRTMin:
		return "RTMIN"
	case n == signalRTMax:
		return "RTMAX"
	case n <= rtMiddle:
		return fmt.Sprintf("RTMIN+%d", n-signalRTMin)
	}
	return fmt.Sprintf("RTMAX-%d", signalRTMax-n)
}

func (e *ValidationErrors) stopSignal(text string) {
	if text == "" {
		return
	}
	p := specPath.Child("stopSignal")
	if _, err := ParseSignal(text); err == nil {
		return
	}
	offer := "SIGQUIT"
	if n, err := ParseSignal(strings.ToUpper(strings.TrimSpace(text))); err == nil {
		offer = SignalName(n)
	}
	e.add(p, "write stopSignal: "+offer, "want the name of a signal or a number from 1 to %d, got %q", signalRTMax, text)
}
