// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"strings"

	"wangell.loutres.me/internal/machine/doctor"
)

// checkRights returns what the machine lacks for an instance, one line for each.
func checkRights(ctx context.Context, c Config) error {
	opt := doctor.Options{RequiredOnly: true}
	if c.Containerd != ContainerdAuto && c.Containerd != ContainerdOwn {
		opt.ContainerdAddress = c.Containerd
	}
	bad := doctor.Bad(doctor.Run(ctx, opt))
	if len(bad) == 0 {
		return nil
	}
	var lines []string
	for _, check := range bad {
		lines = append(lines, check.Line())
		if check.Name == doctor.RootCheck {
			break // the other failures follow from this one
		}
	}
	return errors.New("this machine cannot run an instance:\n  " + strings.Join(lines, "\n  ") + "\nSee 'wangell doctor'.")
}
