// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/websocket"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
)

// grpcPod serves what it needs of gRPC's own test service, and counts calls and streams.
type grpcPod struct {
	testpb.UnimplementedTestServiceServer
	at    netip.AddrPort
	calls atomic.Int64
}

func newGRPCPod(t testing.TB) *grpcPod {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &grpcPod{at: l.Addr().(*net.TCPAddr).AddrPort()}
	s := grpc.NewServer()
	testpb.RegisterTestServiceServer(s, p)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return p
}

func (p *grpcPod) UnaryCall(_ context.Context, in *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	p.calls.Add(1)
	if want := in.GetResponseStatus(); want != nil {
		return nil, status.Error(codes.Code(want.Code), want.Message)
	}
	return &testpb.SimpleResponse{Payload: in.GetPayload()}, nil
}

func (p *grpcPod) StreamingOutputCall(in *testpb.StreamingOutputCallRequest,
	out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse],
) error {
	p.calls.Add(1)
	for _, one := range in.GetResponseParameters() {
		answer := &testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: make([]byte, one.GetSize())}}
		if err := out.Send(answer); err != nil {
			return err
		}
	}
	return nil
}

func (p *grpcPod) FullDuplexCall(
	both grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse],
) error {
	p.calls.Add(1)
	for {
		in, err := both.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := both.Send(&testpb.StreamingOutputCallResponse{Payload: in.GetPayload()}); err != nil {
			return err
		}
	}
}

// One HTTP/2 connection of a gRPC client, five pods: the busiest one gets as many calls as the others, and streams in
// both directions work.
func TestCallsOfOneGRPCConnectionGoToAllPods(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	var pods []*grpcPod
	var addrs []netip.AddrPort
	for range 5 {
		p := newGRPCPod(t)
		pods, addrs = append(pods, p), append(addrs, p.at)
	}
	s := shop(t, addrs...)
	s.Protocol = HTTP2
	r.set(s)
	conn, err := grpc.NewClient(s.at().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := t.Context()
	c := testpb.NewTestServiceClient(conn)
	const calls = 500
	for i := range calls {
		body := []byte(fmt.Sprint(i))
		a, err := c.UnaryCall(ctx, &testpb.SimpleRequest{Payload: &testpb.Payload{Body: body}})
		if err != nil || string(a.GetPayload().GetBody()) != string(body) {
			t.Fatalf("call %d: %v, %v", i, a, err)
		}
	}
	var busiest int64
	for i, p := range pods {
		got := p.calls.Load()
		t.Logf("pod %d: %d calls", i, got)
		busiest = max(busiest, got)
	}
	if ratio := float64(busiest) * float64(len(pods)) / calls; ratio > 1.05 {
		t.Errorf("the busiest pod got %.2f times the mean", ratio)
	}
	_, err = c.UnaryCall(ctx, &testpb.SimpleRequest{
		ResponseStatus: &testpb.EchoStatus{Code: int32(codes.OutOfRange), Message: "mine"},
	})
	if got := status.Convert(err); got.Code() != codes.OutOfRange || got.Message() != "mine" {
		t.Errorf("status %v: want the pod's own", got)
	}
	sizes := []int32{31415, 9, 2653, 589790}
	request := &testpb.StreamingOutputCallRequest{}
	for _, n := range sizes {
		request.ResponseParameters = append(request.ResponseParameters, &testpb.ResponseParameters{Size: n})
	}
	down, err := c.StreamingOutputCall(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range sizes {
		if a, err := down.Recv(); err != nil || len(a.GetPayload().GetBody()) != int(n) {
			t.Fatalf("%d of %d bytes, %v", len(a.GetPayload().GetBody()), n, err)
		}
	}
	if _, err := down.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last message: %v", err)
	}
	both, err := c.FullDuplexCall(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range sizes { // each answer comes before the next message is sent
		body := make([]byte, n)
		if err := both.Send(&testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: body}}); err != nil {
			t.Fatal(err)
		}
		if a, err := both.Recv(); err != nil || len(a.GetPayload().GetBody()) != int(n) {
			t.Fatalf("%d of %d bytes, %v", len(a.GetPayload().GetBody()), n, err)
		}
	}
	if err := both.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := both.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last message: %v", err)
	}
}

// A pod that is much slower than the others gets fewer requests, once several are open at a time. What the others do
// meanwhile, and not a clock, says how long it takes for a request, so that the speed of the machine does not matter.
func TestSlowPodsGetFewerRequests(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	const clients, each = 20, 50
	p := newPace(clients)
	pods := []*httpPod{newHTTPPod(t, func(http.ResponseWriter, *http.Request) { p.slow(200) })}
	addrs := []netip.AddrPort{pods[0].at}
	for range 4 {
		pod := newHTTPPod(t, func(http.ResponseWriter, *http.Request) { p.quick() })
		pods, addrs = append(pods, pod), append(addrs, pod.at)
	}
	s := shop(t, addrs...)
	r.set(s)
	var running sync.WaitGroup
	for range clients {
		c := client(t, false)
		running.Go(func() {
			defer p.leave()
			for range each {
				get(t, c, s.at())
			}
		})
	}
	running.Wait()
	slow, all := pods[0].requests.Load(), int64(0)
	for _, p := range pods {
		all += p.requests.Load()
	}
	t.Logf("the slow pod got %d of %d requests", slow, all)
	if others := (all - slow) / 4; slow*2 > others {
		t.Errorf("the slow pod got %d requests, the others %d each: want less than half of that", slow, others)
	}
}

// pace makes one pod slower than others by what these do.
type pace struct {
	mu       sync.Mutex
	changed  *sync.Cond
	clients  int // clients that have not finished, each of which has one request at a time
	waiting  int // requests that the slow pod has
	answered int // requests that the quick pods have answered
	released int // how often all that waited were released, because every client waited
}

func newPace(clients int) *pace {
	p := &pace{clients: clients}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// quick is a request to a quick pod.
func (p *pace) quick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answered++
	p.changed.Broadcast()
}

// slow is a request to the slow pod: it ends once the quick pods have answered n more, or all clients wait.
func (p *pace) slow(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	until, released := p.answered+n, p.released
	p.waiting++
	p.releaseLast()
	for p.answered < until && p.released == released {
		p.changed.Wait()
	}
	p.waiting--
}

// leave says that a client has finished.
func (p *pace) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients--
	p.releaseLast()
}

// releaseLast releases the requests of the slow pod if every client has one there.
func (p *pace) releaseLast() {
	if p.waiting >= p.clients {
		p.released++
		p.changed.Broadcast()
	}
}

func TestWebSocketsStayOnTheirPod(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	var pods []netip.AddrPort
	for i := range 3 {
		name := fmt.Sprintf("pod %d: ", i)
		pods = append(pods, newHTTPPod(t, websocket.Handler(func(c *websocket.Conn) {
			for {
				var text string
				if websocket.Message.Receive(c, &text) != nil || websocket.Message.Send(c, name+text) != nil {
					return
				}
			}
		}).ServeHTTP).at)
	}
	s := shop(t, pods...)
	r.set(s)
	get(t, client(t, false), s.at()) // Envoy listens
	seen := map[string]bool{}
	for range 12 {
		c, err := websocket.Dial(fmt.Sprintf("ws://%s/", s.at()), "", fmt.Sprintf("http://%s/", s.at()))
		if err != nil {
			t.Fatal(err)
		}
		var first string
		for i := range 20 {
			text, got := strings.Repeat("x", 1+i*1000), ""
			if err := websocket.Message.Send(c, text); err != nil {
				t.Fatal(err)
			}
			if err := websocket.Message.Receive(c, &got); err != nil {
				t.Fatal(err)
			}
			pod, echo, _ := strings.Cut(got, ": ")
			if first == "" {
				first = pod
			}
			if pod != first || echo != text {
				t.Fatalf("message %d: %d bytes from %s, want %d from %s", i, len(echo), pod, len(text), first)
			}
		}
		seen[first] = true
		c.Close()
	}
	if len(seen) < 2 {
		t.Errorf("twelve WebSockets are all on %v", seen)
	}
}

func TestAnswersToHEADHaveNoBody(t *testing.T) {
	t.Parallel()
	r := runEnvoy(t)
	pod := newHTTPPod(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "twelve bytes") })
	s := shop(t, pod.at)
	r.set(s)
	c := client(t, false)
	get(t, c, s.at())
	for range 3 { // on one connection: a body would be the next answer
		a, err := c.Head(fmt.Sprintf("http://%s/", s.at()))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(a.Body)
		a.Body.Close()
		if err != nil || len(body) > 0 || a.ContentLength != 12 {
			t.Errorf("%d bytes, length %d, %v", len(body), a.ContentLength, err)
		}
		if code, text := get(t, c, s.at()); code != http.StatusOK || text != "twelve bytes" {
			t.Errorf("status %d: %s", code, text)
		}
	}
}
