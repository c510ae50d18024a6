// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"time"

	"wangell.loutres.me/internal/images/image"
	"wangell.loutres.me/test/testutil/debimage"
)

// redmine is the application of the report: Redmine in Passenger in Apache, and MariaDB. Its clients are JMeter's.
type redmine struct{}

const (
	redminePort = 80
	mariaPort   = 3306
	redmineKey  = "6c616200000000000000000000000000000000ff" // of redmine/setup.rb
	userSteps   = 4                                          // operations of a user in redmine/plan.jmx
	redmineIDs  = 33                                         // www-data, as on Debian
	mariaID     = 106
)

// redmineSettings are those that the tuned test changes.
type redmineSettings struct{ workers, pool, flush string }

var (
	redmineBefore = redmineSettings{workers: "150", pool: "6", flush: "1"}
	redmineTuned  = redmineSettings{workers: "200", pool: "15", flush: "2"}
)

//go:embed redmine/start.sh
var redmineStart []byte

//go:embed redmine/httpd.conf
var redmineHTTPD []byte

//go:embed redmine/init.sql
var redmineSQL []byte

//go:embed redmine/setup.rb
var redmineSetup []byte

func (redmine) name() string  { return "redmine" }
func (redmine) title() string { return "Where a container writes: Redmine" }

func (redmine) how() string {
	return fmt.Sprintf(`The application is the report's: Redmine in Passenger in Apache (prefork), and MariaDB, with
Redmine's default data, one project and no tickets at the beginning of each run. In two containers, the web server
finds the database by DNS. The clients are Apache JMeter's: users arrive evenly, and each opens the login page, logs
in, goes to the project and creates a ticket: %d operations, whose times include redirects. An answer with the wrong
content is an error, and so is a login page after the log-in. The rate is that at which users arrive, times %d; a
slow server does not slow it down. The report's layer was a copy-on-write store of blocks, on device-mapper in a
sparse loop file. The layer of overlayfs is a folder: once a file is there, writing it is writing a file of the
machine's file system, as on a volume, and the first write of a file of the image copies all of it.`,
		userSteps, userSteps)
}

func (redmine) headline() string { return "" }

func (redmine) tuning() string {
	b, t := redmineBefore, redmineTuned
	return fmt.Sprintf("MaxClients %s instead of %s; pool of Passenger %s instead of %s; "+
		"innodb_flush_log_at_trx_commit %s instead of %s", t.workers, b.workers, t.pool, b.pool, t.flush, b.flush)
}

func (redmine) limits() (cpu, memory string) { return "1", "1536Mi" }

func (redmine) servers(c Case) []server {
	settings := redmineBefore
	if c.Tuned {
		settings = redmineTuned
	}
	if c.Workers != "" {
		settings = redmineSettings{workers: c.Workers, pool: c.Pool, flush: c.Flush}
	}
	web := server{name: "redmine", recipe: redmineRecipe(), port: redminePort, data: "/data", env: map[string]string{
		"PARTS": "both", "DATABASE": "127.0.0.1", "WORKERS": settings.workers, "POOL": settings.pool,
		"FLUSH": settings.flush,
	}}
	if !c.Split {
		return []server{web}
	}
	web.env = map[string]string{"PARTS": "web", "DATABASE": "database", "WORKERS": settings.workers, "POOL": settings.pool}
	return []server{web, {name: "database", recipe: redmineRecipe(), port: mariaPort, data: "/data",
		env: map[string]string{"PARTS": "database", "FLUSH": settings.flush}}}
}

func redmineRecipe() debimage.Recipe {
	link := func(to string) image.File { return image.File{Mode: fs.ModeSymlink | 0o777, Link: to} }
	own := image.File{Mode: fs.ModeDir | 0o755, UID: redmineIDs, GID: redmineIDs}
	return debimage.Recipe{
		Name: "lab-redmine",
		Packages: []string{"redmine", "redmine-mysql", "libapache2-mod-passenger", "mariadb-server", "coreutils", "procps",
			"busybox-static"},
		// What Redmine and MariaDB recommend, and converters of pictures.
		Without: []string{"imagemagick*", "libmagick*", "ruby-rmagick", "libheif*", "libaom*", "libdav1d*", "libx265*",
			"libde265*", "fonts-*", "galera-4", "gawk", "rsync", "socat", "lsof", "iproute2", "unzip", "zip"},
		Users: []debimage.User{{Name: "www-data", ID: redmineIDs, Home: "/var/www", Shell: "/bin/sh"},
			{Name: "mysql", ID: mariaID, Home: "/data", Shell: "/bin/sh"}},
		Entrypoint: []string{"/bin/sh", "/lab/start.sh"}, Port: redminePort,
		Files: map[string]image.File{
			"/lab/start.sh":                            {Data: redmineStart},
			"/lab/httpd.conf":                          {Data: redmineHTTPD},
			"/lab/init.sql":                            {Data: redmineSQL},
			"/lab/setup.rb":                            {Data: redmineSetup},
			"/usr/bin/sh":                              link("busybox"),
			"/data":                                    {Mode: fs.ModeDir | 0o755},
			"/etc/hosts":                               {Data: []byte("127.0.0.1 localhost\n")},
			"/etc/nsswitch.conf":                       {Data: []byte("passwd: files\ngroup: files\nhosts: files dns\n")},
			"/etc/redmine/default/secret_key.txt":      {Data: []byte("6c61626c61626c61626c61626c61626c61626c61626c\n")},
			"/var/lib/redmine":                         own,
			"/var/lib/redmine/default":                 own,
			"/var/lib/redmine/default/config":          link("/etc/redmine/default"),
			"/var/lib/redmine/default/files":           link("/data/files"),
			"/var/lib/redmine/default/log":             link("/data/log"),
			"/var/lib/redmine/default/tmp":             link("/var/cache/redmine/default/tmp"),
			"/var/cache/redmine/default/tmp":           own,
			"/var/cache/redmine/default/plugin_assets": own,
		},
	}
}

// prepare returns once Redmine answers with its project. The first request wakes it, and it makes its data then.
func (redmine) prepare(ctx context.Context, c client) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	transport := &http.Transport{DialContext: c.ns.Dialer().DialContext, DisableKeepAlives: true}
	url := "http://" + c.servers[0].String() + "/projects/lab.json"
	return untilAsLongAs(ctx, func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		req.Header.Set("X-Redmine-API-Key", redmineKey)
		res, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		var answer struct{ Project struct{ Name string } }
		err = json.NewDecoder(res.Body).Decode(&answer)
		if res.StatusCode != http.StatusOK || err != nil || answer.Project.Name != "Lab" {
			return fmt.Errorf("%s: %s, project %q: %w", url, res.Status, answer.Project.Name,
				errors.Join(errors.New("want project Lab"), err))
		}
		return nil
	})
}

func (redmine) measure(ctx context.Context, c client, l load) (Result, error) {
	j, err := findJMeter(ctx)
	if err != nil {
		return Result{}, err
	}
	jtl := filepath.Join(c.dir, "samples.jtl")
	users := max(1, int(float64(l.rate)*l.duration.Minutes()/userSteps+0.5))
	if err := j.run(ctx, c, jtl, users, l.duration); err != nil {
		return Result{}, err
	}
	ops, err := readJTL(jtl)
	if err != nil {
		return Result{}, err
	}
	lines, err := j.aggregate(ctx, jtl)
	if err != nil {
		return Result{}, err
	}
	return Result{Operations: ops, JMeter: lines}, checkAggregate(ops, lines)
}

func (redmine) versions(ctx context.Context) (map[string]string, error) {
	if _, err := findJMeter(ctx); err != nil { // fetches it, before anything is measured
		return nil, err
	}
	java, err := versionOf(ctx, "java", "java", "--version")
	if err != nil {
		return nil, err
	}
	java["jmeter"] = jmeterVersion
	return java, nil
}
