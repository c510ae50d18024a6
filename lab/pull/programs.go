// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"wangell.loutres.me/internal/base/host"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/images/erofs"
)

// The registry is a Debian package and a program, which the machine itself need not have.
const registryPackage, registryProgram = "docker-registry", "docker-registry"

// canErofs reports whether a version of containerd can use the snapshotter erofs on this kernel.
func canErofs(containerd string) bool {
	release := gate.KernelRelease()
	found, err := host.FindFilesystem(erofs.Snapshotter, release)
	return err == nil && found != host.Missing && erofs.MountsFiles(release) && erofs.Supported(containerd)
}
