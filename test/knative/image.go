// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"wangell.loutres.me/test/testutil/programimage"
)

// programImage makes the image of one program. Knative's programs are at the path that ko uses, and run as an
// unprivileged user, as in Knative's own images.
func programImage(file string) (v1.Image, error) {
	program := filepath.Base(file)
	at := "/ko-app/" + program
	if program == "envoy" {
		at = "/usr/local/bin/envoy" // the path in the gateway's manifest
	}
	return programimage.Build(file, at)
}

// push pushes a program's image to the cluster's registry and returns the reference for nodes.
func push(ctx context.Context, c *cluster, b *built, program string) (string, error) {
	img, err := programImage(filepath.Join(b.Bin, program))
	if err != nil {
		return "", err
	}
	repository := "knative/" + program + ":" + b.version(program)
	to, err := name.NewTag(c.Registry.PushAddress+"/"+repository, name.Insecure)
	if err != nil {
		return "", fmt.Errorf("push %s: %w", program, err)
	}
	if err := remote.Write(to, img, remote.WithContext(ctx)); err != nil {
		return "", fmt.Errorf("push %s to %s: %w", program, to, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return "", fmt.Errorf("push %s: %w", program, err)
	}
	return c.Registry.Address + "/" + repository + "@" + digest.String(), nil
}
