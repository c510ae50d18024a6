// SPDX-License-Identifier: Apache-2.0

package envoy

import (
	"fmt"
	"net/netip"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// packed are messages by the name of the extension that they are for.
type packed = map[string]*anypb.Any

// pack packs a message. Equal messages always give the same bytes, so that Envoy sees no change.
func pack(m proto.Message) *anypb.Any {
	a := &anypb.Any{}
	if err := anypb.MarshalFrom(a, m, proto.MarshalOptions{Deterministic: true}); err != nil {
		panic(fmt.Sprintf("packing %T: %v", m, err)) // a string in it is not UTF-8, which manifests exclude
	}
	return a
}

// address is the address of a TCP socket.
func address(a netip.AddrPort) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: a.Addr().String(), PortSpecifier: &core.SocketAddress_PortValue{PortValue: uint32(a.Port())},
	}}}
}

// ads says that a resource comes by the aggregated stream.
func ads() *core.ConfigSource {
	return &core.ConfigSource{
		ResourceApiVersion:    core.ApiVersion_V3,
		ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}},
	}
}

// xdsCluster is the cluster of the Server.
const xdsCluster = "wangell"
