// SPDX-License-Identifier: Apache-2.0

package debimage

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"io/fs"

	"wangell.loutres.me/internal/images/image"
)

// busybox is the package with the shell of images that need one.
const busybox = "busybox-static"

var shell = image.File{Mode: fs.ModeSymlink | 0o777, Link: "busybox"}

// Nginx is nginx on port 8080. / returns "nginx\n", and /1m returns one MiB of zeros.
func Nginx() Recipe {
	return Recipe{
		Name: "nginx", Packages: []string{"nginx"},
		Without: []string{
			"iproute2", "libcap2-bin", "libbpf*", "libelf*", "libtirpc*", "libxtables*", "libmnl*", "libdb5*",
		},
		Users:      []User{{Name: "www-data", ID: 33, Home: "/var/www"}},
		Entrypoint: []string{"/usr/sbin/nginx", "-c", "/etc/nginx/wangell.conf", "-e", "stderr"},
		Port:       8080, StopSignal: "SIGQUIT",
		Files: map[string]image.File{
			"/etc/nginx/wangell.conf": {Data: []byte(nginxConf)},
			"/srv/index.html":         {Data: []byte("nginx\n")},
			"/srv/1m":                 {Data: make([]byte, 1<<20)},
			"/var/log/nginx":          {Mode: fs.ModeDir | 0o755},
			"/var/lib/nginx":          {Mode: fs.ModeDir | 0o755},
		},
	}
}

const nginxConf = `daemon off;
user www-data;
worker_processes 1;
pid /run/nginx.pid;
events { worker_connections 4096; }
http {
    access_log off;
    keepalive_requests 1000000;
    default_type text/plain;
    server {
        listen 8080 backlog=4096;
        root /srv;
    }
}
`

// Redis is a Redis server on port 6379 of all addresses that stores nothing on disk.
func Redis() Recipe {
	return Recipe{
		Name: "redis", Packages: []string{"redis-server"},
		Users: []User{{Name: "redis", ID: 999, Home: "/var/lib/redis"}}, User: "999:999",
		Entrypoint: []string{
			"/usr/bin/redis-server", "--bind", "0.0.0.0", "--port", "6379", "--protected-mode", "no",
			"--save", "", "--dir", "/tmp",
		},
		Port: 6379,
	}
}

// Postgres is a PostgreSQL server (15 on Debian 12) on port 5432. Every client may log in as user postgres without a
// password. The first start creates the data in /var/lib/postgresql/data; mount a folder at /var/lib/postgresql to keep
// it.
func Postgres() Recipe {
	const uid = 999
	return Recipe{
		Name: "postgres", Packages: []string{"postgresql", busybox},
		Without: []string{
			"libllvm*", "libz3*", "postgresql-common*", "ssl-cert", "openssl", "locales", "libc-l10n", "netbase",
		},
		Users:      []User{{Name: "postgres", ID: uid, Home: "/var/lib/postgresql", Shell: "/bin/sh"}},
		User:       "999:999",
		Entrypoint: []string{"/bin/sh", "/start"},
		Port:       5432, StopSignal: "SIGINT",
		Files: map[string]image.File{
			"/start":              {Data: []byte(postgresStart)},
			"/usr/bin/sh":         shell,
			"/var/lib/postgresql": {Mode: fs.ModeDir | 0o755, UID: uid, GID: uid},
			"/run/postgresql":     {Mode: fs.ModeDir | 0o755, UID: uid, GID: uid},
			"/etc/hosts":          {Data: []byte("127.0.0.1 localhost\n")},
		},
	}
}

const postgresStart = `set -e
bin=$(echo /usr/lib/postgresql/*/bin)
data=/var/lib/postgresql/data
if [ ! -e "$data" ]; then # a start before this one may have been killed
	/usr/bin/busybox rm -rf "$data.new"
	"$bin/initdb" --pgdata="$data.new" --username=postgres --auth=trust --no-locale --encoding=UTF8 --no-sync
	echo "host all all all trust" >>"$data.new/pg_hba.conf"
	/usr/bin/busybox mv "$data.new" "$data"
fi
exec "$bin/postgres" -D "$data" -c listen_addresses='*' -c port=5432 -c unix_socket_directories=/tmp -c jit=off
`

// MariaDB is a MariaDB server (10.11 on Debian 12) on port 3306 with a database test. Every client may log in as user
// test without a password. The first start creates the data in /var/lib/mysql/data; mount a folder at /var/lib/mysql to
// keep it.
func MariaDB() Recipe {
	const uid = 999
	return Recipe{
		Name: "mariadb", Packages: []string{"mariadb-server", busybox},
		Without: []string{
			"galera-4", "gawk", "rsync", "socat", "lsof", "iproute2", "procps", "libdbi-perl", "perl", "psmisc",
			"libdbd-*", "lib*-perl",
		},
		Users:      []User{{Name: "mysql", ID: uid, Home: "/var/lib/mysql", Shell: "/bin/sh"}},
		User:       "999:999",
		Entrypoint: []string{"/bin/sh", "/start"},
		Port:       3306,
		Files: map[string]image.File{
			"/start":         {Data: []byte(mariaStart)},
			"/init.sql":      {Data: []byte(mariaInit)},
			"/usr/bin/sh":    shell,
			"/var/lib/mysql": {Mode: fs.ModeDir | 0o755, UID: uid, GID: uid},
			"/etc/hosts":     {Data: []byte("127.0.0.1 localhost\n")},
		},
	}
}

const mariaStart = `set -e
tools=/tmp/tools
/usr/bin/busybox mkdir -p "$tools"
/usr/bin/busybox --install -s "$tools"
export PATH="$PATH:$tools"
data=/var/lib/mysql/data
if [ ! -e "$data" ]; then # a start before this one may have been killed
	rm -rf "$data.new"
	mariadb-install-db --no-defaults --datadir="$data.new" --auth-root-authentication-method=normal --skip-test-db \
		--innodb-log-file-size=16M >&2
	mv "$data.new" "$data"
fi
exec mariadbd --no-defaults --datadir="$data" --socket=/tmp/mysqld.sock --pid-file=/tmp/mysqld.pid --port=3306 \
	--bind-address=0.0.0.0 --skip-name-resolve --innodb-log-file-size=16M --init-file=/init.sql
`

const mariaInit = `CREATE DATABASE IF NOT EXISTS test;
CREATE USER IF NOT EXISTS test@'%';
GRANT ALL ON test.* TO test@'%';
`

// SSH is an OpenSSH server on port 22, a protocol in which the server speaks first. root logs in without a password and
// has a small shell.
func SSH() Recipe {
	return Recipe{
		Name: "ssh", Packages: []string{"openssh-server", busybox},
		Without: []string{"openssh-client", "openssh-sftp-server", "procps", "libproc2*", "libncurses*", "libpam-modules*"},
		Users: []User{{Name: "root", Home: "/root", Shell: "/bin/sh", EmptyPassword: true},
			{Name: "sshd", ID: 998, Home: "/run/sshd"}},
		Entrypoint: []string{"/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/wangell.conf"},
		Port:       22,
		Files: map[string]image.File{
			"/etc/ssh/wangell.conf": {Data: []byte(sshdConf)},
			"/etc/ssh/host_key":     {Data: hostKey(), Mode: 0o600},
			"/run/sshd":             {Mode: fs.ModeDir | 0o755},
			"/usr/bin/sh":           shell,
		},
	}
}

const sshdConf = `Port 22
HostKey /etc/ssh/host_key
UsePAM no
PermitRootLogin yes
PermitEmptyPasswords yes
PidFile none
UseDNS no
`

// hostKey returns the SSH server's key. It is constant, and so not secret, because the image must be reproducible.
func hostKey() []byte {
	scalar := sha256.Sum256([]byte("the host key of Wangell's test image"))
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar[:])
	if err != nil {
		panic(err) // the hash above is a valid scalar
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		panic(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

// ExitsAtOnce is a program that writes a message to standard error and exits with status 3.
func ExitsAtOnce() Recipe {
	return script("exits", `echo "no configuration: /etc/app.conf is missing" >&2; exit 3`)
}

// NeverListens is a program that runs until SIGTERM and never listens.
func NeverListens() Recipe { return script("deaf", "trap 'exit 0' TERM; sleep 1000000 & wait") }

func script(name, text string) Recipe {
	return Recipe{Name: name, Packages: []string{busybox}, Entrypoint: []string{"/bin/sh", "-c", text}, Port: 0,
		Files: map[string]image.File{"/usr/bin/sh": shell}}
}
