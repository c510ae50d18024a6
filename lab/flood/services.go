// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"bytes"
	"fmt"
	"strings"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/images/image"
)

// Names of services; those that are attacked together are "cold-00" and so on.
const (
	warmName  = "warm"
	otherName = "other"
	oneName   = "one"
)

// scanServices is the number of sleeping services of each scanProofs that only the scan finds.
const scanServices = 24

// calmNames returns the names of the sleeping services that are woken without an attack.
func calmNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("calm-%02d", i))
	}
	return names
}

func coldName(i int) string { return fmt.Sprintf("cold-%02d", i) }

// scanNames returns the names of the services with a wakeProof that only the scan finds.
func scanNames(proof v1alpha1.WakeProof) (names []string) {
	for i := range scanServices {
		names = append(names, fmt.Sprintf("scan-%s-%02d", strings.ToLower(string(proof)), i))
	}
	return names
}

func coldNames(n int) (names []string) {
	for i := range n {
		names = append(names, coldName(i))
	}
	return names
}

// manifest returns the manifest of all services. wakeProof applies to the services that are flooded.
func manifest(cold int, wakeProof string) []byte {
	var b bytes.Buffer
	add := func(name string, minimum int, wakeProof string) {
		fmt.Fprintf(&b, "apiVersion: wangell.loutres.me/v1alpha1\nkind: WangellService\nmetadata: {name: %s}\n"+
			"spec: {image: %q, targetPort: 8080, port: 80, idleTimeout: 3600, minReplicas: %d, wakeProof: %s}\n"+
			"---\n", name, image.HelloTag, minimum, wakeProof)
	}
	add(warmName, 1, wakeProof)
	add(otherName, 1, wakeProof)
	add(oneName, 0, wakeProof)
	for i := range cold {
		add(coldName(i), 0, wakeProof)
	}
	for _, name := range calmNames(cold) {
		add(name, 0, string(v1alpha1.WakeProofAuto))
	}
	for _, proof := range scanProofs {
		for _, name := range scanNames(proof) {
			add(name, 0, string(proof))
		}
	}
	return b.Bytes()
}
