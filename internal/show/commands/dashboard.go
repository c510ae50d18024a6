// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"runtime"

	"github.com/spf13/cobra"

	"wangell.loutres.me/internal/show/cli"
	"wangell.loutres.me/internal/show/dashboard"
)

// dashboardFlags holds the flags of dashboard.
type dashboardFlags struct {
	address         string
	noOpen, actions bool
}

func (p *Place) newDashboard() *cobra.Command {
	f := &dashboardFlags{}
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Watch services in the browser",
		Long: `Serve the dashboard of a running 'wangell up' on a loopback address until Ctrl-C, print its URL,
and open it if there is a desktop. The URL has a random token; whoever has it can watch.

Over SSH, forward the port: ssh -L 9465:127.0.0.1:9465 HOST, with --address 127.0.0.1:9465.`,
		GroupID: GroupLook,
		Example: `  sudo wangell dashboard
  sudo wangell dashboard --address 127.0.0.1:9465 --no-open
  sudo wangell dashboard --ui-actions`,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serve(cmd, p) },
	}
	if p.Cluster {
		cmd.Long = `Serve the dashboard of a cluster on a loopback address of this machine until Ctrl-C, print its
URL, and open it if there is a desktop. It comes from the leading controller, through the API
server, and shows what you may see: whoever has the URL, which has a random token, sees the same.

Without -A it shows the services of one namespace. The state of nodes needs -A, and the right to
list wangellservices in all namespaces.`
		cmd.Example = `  kubectl wangell dashboard
  kubectl wangell dashboard -A --ui-actions
  kubectl wangell dashboard -n team --address 127.0.0.1:9465 --no-open`
	}
	p.several(cmd)
	cmd.Flags().StringVar(&f.address, "address", "127.0.0.1:0", "IP:PORT to listen on; port 0 for any free one")
	cmd.Flags().BoolVar(&f.noOpen, "no-open", false, "only print the URL")
	cmd.Flags().BoolVar(&f.actions, "ui-actions", false, "let users of the dashboard put services to sleep")
	return cmd
}

// serve serves the dashboard until the command's context ends.
func (f *dashboardFlags) serve(cmd *cobra.Command, p *Place) error {
	log, err := p.Log(cmd)
	if err != nil {
		return err
	}
	c, _, err := p.Connect(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Healthy(cmd.Context()); err != nil {
		return err
	}
	l, err := dashboard.Listen(f.address)
	if err != nil {
		return err
	}
	guard := dashboard.NewGuard(c.Dashboard(f.actions), l.Addr())
	if !dashboard.Loopback(l.Addr()) {
		log.Warn("other machines reach this address, and the token is not encrypted on the way: a loopback address with " +
			"'ssh -L' is safer")
	}
	server := dashboard.NewServer(guard, log)
	stop := context.AfterFunc(cmd.Context(), func() { _ = server.Close() }) // what it served has ended
	defer stop()
	fmt.Println(guard.URL())
	if !f.noOpen {
		if opener := browser(os.Getenv, guard.TicketURL()); opener != nil {
			_ = opener.Start() // the URL is printed
		}
	}
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// browser returns the command that opens a URL in the user's browser; nil if there is no desktop. Under sudo, it is the
// browser of the user who called that.
func browser(env func(string) string, url string) *exec.Cmd {
	if runtime.GOOS == "darwin" {
		return exec.Command("open", url)
	}
	if env("DISPLAY") == "" && env("WAYLAND_DISPLAY") == "" {
		return nil
	}
	open, err := exec.LookPath("xdg-open")
	if err != nil {
		return nil
	}
	if user := env("SUDO_USER"); user != "" && user != "root" {
		return exec.Command("runuser", "-u", user, "--", open, url)
	}
	return exec.Command(open, url)
}
