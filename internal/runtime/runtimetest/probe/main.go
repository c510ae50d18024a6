// SPDX-License-Identifier: Apache-2.0

// Command probe is the server that the tests of runtimes run in pods. It listens on [::]:$PORT (default 8080) and
// serves over HTTP:
//
//	/            a description of its environment as JSON (type report)
//	/read?f=     the content of a file
//	/write?f=&t= writes t to a file
//	/print?t=&n= prints the line t n times
//	/exit?code=  exits with a status
//
// As "probe run look" it prints that description, as "probe run shout" it prints a megabyte and exits with status 7,
// and as "probe run hang" it runs until it is killed. As "probe run parent" it has a child that hangs, and on SIGHUP
// leaves the file /dev/shm/hangup and exits; as "probe run stubborn" both ignore SIGHUP. As "probe run cat" it copies
// its input to its output and exits with status 5, and as "probe run tty" it prints the size of its terminal, waits for
// a word, and exits. These are commands for a pod that runs already.
//
// With EXIT=n it prints a line and exits with status n at once. With IGNORE_TERM set it ignores SIGTERM, with
// DEFAULT_TERM it has no handler for it (with the value threads it also starts and ends threads), and with
// TELL_SIGNALS it prints the first signal and exits. With LOCK=file it locks that file for its life; if another process
// holds the lock, it makes the file conflict beside it and exits with status 3.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

type report struct {
	UID, GID         int
	Groups           []int
	Dir, Hostname    string
	Args, Env        []string
	Files            uint64 // limit of open files
	CapEff           string
	Seccomp          string
	NoNewPrivs       string
	Hosts, Resolv    string
	Addresses, Links []string
	Mounts, Cgroup   string
	PID              int
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "run" {
		run(os.Args[2])
	}
	if code := os.Getenv("EXIT"); code != "" {
		fmt.Println("probe: told to exit")
		n, _ := strconv.Atoi(code)
		os.Exit(n)
	}
	if name := os.Getenv("LOCK"); name != "" {
		lock(name)
	}
	port := os.Getenv("PORT")
	if port == "" {
		port = "8080"
	}
	switch {
	case os.Getenv("IGNORE_TERM") != "":
		signal.Ignore(syscall.SIGTERM)
	case os.Getenv("DEFAULT_TERM") != "":
		forgetHandler(syscall.SIGTERM)
		if os.Getenv("DEFAULT_TERM") == "threads" {
			go startThreads()
		}
	case os.Getenv("TELL_SIGNALS") != "":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop)
		go func() {
			for s := range stop {
				if s != syscall.SIGURG { // the Go runtime's own
					fmt.Println("probe:", s)
					os.Exit(0)
				}
			}
		}()
	default:
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		go func() {
			<-stop
			fmt.Println("probe: stopped")
			os.Exit(0)
		}()
	}
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(look()) })
	http.HandleFunc("/read", func(w http.ResponseWriter, r *http.Request) {
		text, err := os.ReadFile(r.FormValue("f"))
		answer(w, string(text), err)
	})
	http.HandleFunc("/write", func(w http.ResponseWriter, r *http.Request) {
		answer(w, "", os.WriteFile(r.FormValue("f"), []byte(r.FormValue("t")), 0o644))
	})
	http.HandleFunc("/print", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("n"))
		_, err := os.Stdout.WriteString(strings.Repeat(r.FormValue("t")+"\n", n))
		answer(w, "", err)
	})
	http.HandleFunc("/exit", func(_ http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.FormValue("code"))
		fmt.Println("probe: asked to exit")
		os.Exit(n)
	})
	l, err := net.Listen("tcp", "[::]:"+port)
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
	fmt.Println("probe: listening on port " + port)
	fmt.Fprintln(os.Stderr, http.Serve(l, nil))
	os.Exit(1)
}

// startThreads starts a thread every two milliseconds, which ends at once.
func startThreads() {
	for range time.Tick(2 * time.Millisecond) {
		go runtime.LockOSThread()
	}
}

// forgetHandler sets a signal's default action, which package signal cannot: the Go runtime has handlers of its own.
func forgetHandler(s syscall.Signal) {
	var action [32]byte // struct sigaction of the kernel: SIG_DFL, no flags, no mask
	if _, _, err := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&action)), 0, 8, 0,
		0); err != 0 {
		fmt.Fprintln(os.Stderr, "probe: sigaction:", err)
		os.Exit(1)
	}
}

// run executes a command in a running pod, and exits.
func run(what string) {
	switch what {
	case "look":
		_ = json.NewEncoder(os.Stdout).Encode(look())
		os.Exit(0)
	case "shout":
		_, _ = os.Stdout.WriteString(strings.Repeat("loud ", 1<<18))
		os.Exit(7)
	case "cat":
		n, err := io.Copy(os.Stdout, os.Stdin)
		fmt.Fprintln(os.Stderr, n, "bytes", err)
		os.Exit(5)
	case "tty":
		for {
			var size struct{ rows, columns, x, y uint16 }
			if _, _, err := syscall.Syscall(syscall.SYS_IOCTL, 0, syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size))); err != 0 {
				fmt.Println("no terminal:", err)
				os.Exit(6)
			}
			if size.columns != 0 {
				fmt.Printf("%d columns, %d rows, TERM=%s\n", size.columns, size.rows, os.Getenv("TERM"))
				break
			}
			time.Sleep(time.Millisecond)
		}
		var word string
		_, _ = fmt.Scan(&word)
		fmt.Println("read", word)
		os.Exit(0)
	case "parent", "stubborn": // has a child; the first leaves a file on SIGHUP, the second and its child ignore it
		hangup := make(chan os.Signal, 1)
		if signal.Notify(hangup, syscall.SIGHUP); what == "stubborn" {
			signal.Ignore(syscall.SIGHUP)
		}
		child := exec.Command(os.Args[0], "run", "hang")
		child.Stdout = os.Stdout
		if err := child.Start(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("has a child")
		<-hangup
		_ = os.WriteFile("/dev/shm/hangup", []byte("SIGHUP"), 0o644)
		os.Exit(0)
	}
	time.Sleep(24 * time.Hour)
}

// held keeps the lock's file open.
var held *os.File

func lock(name string) {
	var err error
	if held, err = os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644); err == nil {
		err = syscall.Flock(int(held.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe: lock:", err)
		_ = os.WriteFile(filepath.Join(filepath.Dir(name), "conflict"), []byte(err.Error()), 0o644)
		os.Exit(3)
	}
}

func answer(w http.ResponseWriter, text string, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprint(w, text)
}

func look() report {
	r := report{UID: os.Getuid(), GID: os.Getgid(), Args: os.Args, Env: os.Environ(), PID: os.Getpid()}
	r.Groups, _ = os.Getgroups()
	r.Dir, _ = os.Getwd()
	r.Hostname, _ = os.Hostname()
	var files syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files)
	r.Files = files.Max
	r.Hosts, r.Resolv = read("/etc/hosts"), read("/etc/resolv.conf")
	r.Mounts, r.Cgroup = read("/proc/self/mounts"), read("/proc/self/cgroup")
	for line := range strings.Lines(read("/proc/self/status")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
		switch name {
		case "CapEff":
			r.CapEff = value
		case "Seccomp":
			r.Seccomp = value
		case "NoNewPrivs":
			r.NoNewPrivs = value
		}
	}
	links, _ := net.Interfaces()
	for _, l := range links {
		r.Links = append(r.Links, l.Name)
		addrs, _ := l.Addrs()
		for _, a := range addrs {
			r.Addresses = append(r.Addresses, a.String())
		}
	}
	return r
}

func read(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
