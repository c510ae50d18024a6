// SPDX-License-Identifier: Apache-2.0

// Command server runs in the containers of the end-to-end tests. Its environment controls how it behaves:
//
//	PORT          port to listen on, default 8080
//	MORE_PORTS    further ports to listen on: 8443,9113
//	MORE_DELAY    delay before it listens on those, such as 500ms, after it listens on PORT
//	BIND          address to listen on, default all
//	MODE          http (default), lines, exit, done, deaf, taken
//	LISTEN_DELAY  delay before it listens, such as 500ms
//	READY_DELAY   time after it listens in which it answers every request with 503
//	STOP_DELAY    time between SIGTERM and its exit
//	STOP          close: at SIGTERM it closes the listening socket at once, and exits when no connection is left; each
//	              answer from then on closes its connection (mode http)
//	VERSION       version in its answers
//	TARGET        host:port that /proxy sends requests to, unless asked for another one (/proxy?target=HOST:PORT)
//
// Mode http answers / with an Answer, /proxy with the answer of TARGET, /resolve?name=N with the addresses of
// a name or the names of an address, /udp?target=HOST:PORT with what becomes of a datagram, and /slow?for=100ms after
// a delay; /hold?bytes=1000000 allocates memory. Mode lines greets each client with an Answer on a line and repeats
// each line, except "reset", which resets the connection, and "close", which closes it; when the client has closed its
// half, the server writes the number of bytes. It also prints what it reads from its standard input. Mode exit prints
// a message and exits with status 3, done exits with 0, deaf never listens, and taken finds its port in use.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		if err := run(); err != nil {
			fmt.Fprintln(os.Stderr, "server:", err)
			os.Exit(1)
		}
	}()
	<-stop
	fmt.Println("server: asked to stop")
	time.Sleep(duration("STOP_DELAY"))
	if os.Getenv("STOP") == "close" {
		last.close()
	}
}

func run() error {
	port, err := strconv.Atoi(or(os.Getenv("PORT"), "8080"))
	if err != nil {
		return err
	}
	time.Sleep(duration("LISTEN_DELAY"))
	switch mode := os.Getenv("MODE"); mode {
	case "exit":
		fmt.Fprintln(os.Stderr, "server: no configuration: /etc/app.conf is missing")
		os.Exit(3)
	case "done":
		os.Exit(0)
	case "deaf":
		fmt.Println("server: deaf")
		return nil
	case "taken":
		if err := occupy(port); err != nil {
			return err
		}
	case "", "http", "lines":
	default:
		return fmt.Errorf("no mode %q", mode)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(os.Getenv("BIND"), strconv.Itoa(port)))
	if err != nil {
		return err
	}
	fmt.Println("server: listening on", l.Addr())
	serve := last.serve
	if os.Getenv("MODE") == "lines" {
		serve = lines
	}
	go listenMore(serve)
	return serve(l)
}

// listenMore serves MORE_PORTS as well.
func listenMore(serve func(net.Listener) error) {
	time.Sleep(duration("MORE_DELAY"))
	for port := range strings.SplitSeq(os.Getenv("MORE_PORTS"), ",") {
		if port == "" {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(os.Getenv("BIND"), port))
		if err != nil {
			fmt.Fprintln(os.Stderr, "server:", err)
			os.Exit(1)
		}
		fmt.Println("server: listening on", l.Addr())
		go func() { _ = serve(l) }()
	}
}

// occupy binds the port and does not listen, like another program that starts at the same time.
func occupy(port int) error {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	return syscall.Bind(fd, &syscall.SockaddrInet4{Port: port})
}

func lines(l net.Listener) error {
	go printInput()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go converse(c.(*net.TCPConn))
	}
}

// printInput prints each line of the standard input.
func printInput() {
	for r := bufio.NewReader(os.Stdin); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		fmt.Printf("server: read %q\n", line)
	}
}

func converse(c *net.TCPConn) {
	defer c.Close()
	writeJSON(c, answer(c.RemoteAddr()))
	n := 0
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadString('\n')
		n += len(line)
		if err != nil {
			if err == io.EOF {
				fmt.Fprintf(c, "%d bytes\n", n)
			}
			return
		}
		switch line {
		case "reset\n":
			_ = c.SetLinger(0)
			return
		case "close\n":
			return
		}
		if _, err := io.WriteString(c, line); err != nil {
			return
		}
	}
}
