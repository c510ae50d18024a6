// SPDX-License-Identifier: Apache-2.0

package cold

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/lab/onenode"
)

// Params configures the experiment.
type Params struct {
	// Wangell is the program to measure. Default: see onenode.FindWangell.
	Wangell string
	// Requests is the number of cold requests. Default: 30, or 5 if Quick.
	Requests int
	// Quick makes few requests: enough to see that the experiment works, not to trust the numbers.
	Quick bool
	// Image is a tarball of an image that answers GET / with status 200 on port Port, and Tag is its name. Default: the
	// hello image, which the Go toolchain compiles.
	Image, Tag string
	Port       int32

	// floor is the command line of the floor process. Default: this program, "floor".
	floor []string
}

// Flags implements lab.Params.
func (p *Params) Flags(f *pflag.FlagSet) {
	f.StringVar(&p.Wangell, "wangell", "", "program to measure (default: the wangell beside this program, or in $PATH)")
	f.IntVar(&p.Requests, "requests", 0, "number of cold requests (default 30, with --quick 5)")
	f.BoolVar(&p.Quick, "quick", false, "few requests: to see that it works, not to trust the numbers")
	f.StringVar(&p.Image, "image", "", "tarball of the image to measure (default: the hello image)")
	f.StringVar(&p.Tag, "tag", "", "name of the image in --image")
	f.Int32Var(&p.Port, "port", 0, "port on which --image answers GET /")
}

// Check implements lab.Params.
func (p *Params) Check(f *pflag.FlagSet) error {
	switch {
	case p.Requests < 0 || f.Changed("requests") && p.Requests == 0:
		return fmt.Errorf("--requests %d: want at least 1", p.Requests)
	case p.Image != "" && (p.Tag == "" || p.Port < 1 || p.Port > 65535):
		return errors.New("--image needs --tag, the image's name, and --port, where it listens (1-65535)")
	}
	return nil
}

func (p Params) withDefaults() (Params, error) {
	switch {
	case p.Requests == 0 && p.Quick:
		p.Requests = 5
	case p.Requests == 0:
		p.Requests = 30
	}
	if p.Image == "" {
		p.Tag, p.Port = image.HelloTag, 8080
	}
	if p.Wangell == "" {
		var err error
		if p.Wangell, err = onenode.FindWangell(); err != nil {
			return p, err
		}
	}
	if p.floor == nil {
		self, err := os.Executable()
		if err != nil {
			return p, fmt.Errorf("find this program: %w", err)
		}
		p.floor = []string{self, "floor"}
	}
	return p, nil
}
