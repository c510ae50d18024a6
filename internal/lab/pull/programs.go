// SPDX-License-Identifier: Apache-2.0

package pull

import (
	"wangell.loutres.me/internal/erofs"
	"wangell.loutres.me/internal/gate"
	"wangell.loutres.me/internal/kernelfs"
)

// The registry is a Debian package and a program, which the machine itself need not have.
const registryPackage, registryProgram = "docker-registry", "docker-registry"

// canErofs reports whether a version of containerd can use the snapshotter erofs on this kernel.
func canErofs(containerd string) bool {
	release := gate.KernelRelease()
	found, err := kernelfs.Find(erofs.Snapshotter, release)
	return err == nil && found != kernelfs.None && erofs.MountsFiles(release) && erofs.Supported(containerd)
}
