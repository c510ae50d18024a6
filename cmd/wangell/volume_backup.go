// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/atomicfile"
	"wangell.loutres.me/internal/base/text"
	"wangell.loutres.me/internal/machine/volume"
	"wangell.loutres.me/internal/show/view"
)

func (p *volumePlace) newBackup() *cobra.Command {
	var file string
	var live bool
	cmd := &cobra.Command{
		Use:   "backup VOLUME",
		Short: "Write the content of a persistent volume to a file",
		Long: `Write the content of a persistent volume to a file or to standard output, as a tar archive
compressed with zstd. The service must sleep; if a client comes meanwhile, it waits until the
backup is complete, at most for wakeTimeout. With --live, the files of a service that is
awake are copied while they may change, which is no use for most databases.`,
		Example: `  sudo wangell sleep redmine && sudo wangell volume backup redmine.data -f redmine.tar.zst
  sudo wangell volume backup shop/db.data | ssh backup 'cat > db.tar.zst'`,
		ValidArgsFunction: p.complete(1),
		Args:              volumeArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := p.store()
			if err != nil {
				return err
			}
			v, err := store.Find(args[0])
			if err != nil {
				return err
			}
			if file == "-" {
				if view.IsTerminal(os.Stdout) {
					return usage(cmd, "standard output is a terminal: add -f FILE, or redirect it")
				}
				return store.Backup(cmd.Context(), v.ID(), os.Stdout, live)
			}
			var to counter
			err = atomicfile.Into(file, 0o600, func(w io.Writer) error {
				to.Writer = w
				return store.Backup(cmd.Context(), v.ID(), &to, live)
			})
			if err == nil {
				fmt.Fprintf(os.Stderr, "%s is in %s (%s)\n", v.ID(), file, text.Bytes(to.n))
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "-", "file to write; - for standard output")
	cmd.Flags().BoolVar(&live, "live", false, "copy the files of a service that is awake, while they may change")
	return cmd
}

// counter counts the bytes that pass it.
type counter struct {
	io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n += int64(n)
	return n, err
}

func (p *volumePlace) newRestore() *cobra.Command {
	var file, size string
	var replace bool
	cmd := &cobra.Command{
		Use:   "restore VOLUME",
		Short: "Read the content of a persistent volume from a backup",
		Long: `Make a persistent volume with the content of a backup, or replace the content of one. The
service must sleep. The former content stays until the new one is complete, and if anything
fails, so there must be room for both.`,
		Example: `  sudo wangell volume restore redmine.data -f redmine.tar.zst --replace
  ssh backup 'cat db.tar.zst' | sudo wangell volume restore shop/db.data --size 10Gi`,
		ValidArgsFunction: p.complete(1),
		Args:              volumeArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			bytes, err := parseSize(size)
			if err != nil {
				return usage(cmd, "--size %q: %v", size, err)
			}
			store, err := p.store()
			if err != nil {
				return err
			}
			id := volume.ParseID(args[0])
			v, err := store.Find(args[0])
			switch {
			case err == nil:
				id = v.ID()
			case !errors.Is(err, volume.ErrNotFound):
				return err
			}
			in := os.Stdin
			if file != "-" {
				if in, err = os.Open(file); err != nil {
					return err
				}
				defer in.Close()
			} else if view.IsTerminal(os.Stdin) {
				return usage(cmd, "standard input is a terminal: add -f FILE, or redirect it")
			}
			if err := store.Restore(cmd.Context(), id, in, bytes, replace); err != nil {
				return err
			}
			fmt.Printf("restored %s\n", id)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "file", "f", "-", "backup to read; - for standard input")
	f.StringVar(&size, "size", "", "size of a new volume, as persistent.size in the manifest (default: no limit)")
	f.BoolVar(&replace, "replace", false, "replace the content of a volume that exists")
	return cmd
}

// parseSize parses the size of a volume; empty means no limit.
func parseSize(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Cmp(v1alpha1.MinVolumeSize) < 0 {
		return 0, fmt.Errorf("want a size such as 10Gi, and at least %s", v1alpha1.MinVolumeSize.String())
	}
	return q.Value(), nil
}
