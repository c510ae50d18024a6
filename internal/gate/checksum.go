// SPDX-License-Identifier: Apache-2.0

package gate

import "encoding/binary"

// sum16 adds b to a ones' complement sum (RFC 1071).
func sum16(sum uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

// fold16 folds a sum into 16 bits.
func fold16(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// pseudoSum is the sum of the pseudo header of a TCP segment over IPv4 (RFC 9293, 3.1).
func pseudoSum(src, dst []byte, length int) uint32 {
	return sum16(sum16(0, src), dst) + 6 + uint32(length)
}

// tcpSumState tells what the checksum of a TCP segment is.
type tcpSumState int

const (
	sumWrong   tcpSumState = iota // it does not fit the segment
	sumRight                      // it does
	sumPartial                    // it holds only the pseudo header: a device was to complete it
)

// tcpSum looks at the TCP checksum of an IPv4 packet with whole headers.
func tcpSum(ip []byte) tcpSumState {
	tcp := ip[int(ip[0]&0xf)*4:]
	pseudo := pseudoSum(ip[12:16], ip[16:20], len(tcp))
	if fold16(sum16(pseudo, tcp)) == 0xffff {
		return sumRight
	}
	if binary.BigEndian.Uint16(tcp[16:]) == fold16(pseudo) {
		return sumPartial
	}
	return sumWrong
}

// setTCPSum writes the TCP checksum of an IPv4 packet with whole headers.
func setTCPSum(ip []byte) {
	tcp := ip[int(ip[0]&0xf)*4:]
	tcp[16], tcp[17] = 0, 0
	binary.BigEndian.PutUint16(tcp[16:], ^fold16(sum16(pseudoSum(ip[12:16], ip[16:20], len(tcp)), tcp)))
}

// resetFor builds the IPv4 packet with the RST that answers a SYN (RFC 9293, 3.10.7.1): it acknowledges all
// that the SYN occupies in sequence space, or the client would not believe it.
func resetFor(syn []byte) []byte {
	ihl := int(syn[0]&0xf) * 4
	tcp := syn[ihl:]
	payload := len(tcp) - int(tcp[12]>>4)*4
	out := make([]byte, 40)
	out[0] = 0x45
	binary.BigEndian.PutUint16(out[2:], 40)
	out[6] = 0x40 // don't fragment
	out[8] = 64
	out[9] = 6
	copy(out[12:16], syn[16:20])
	copy(out[16:20], syn[12:16])
	binary.BigEndian.PutUint16(out[10:], ^fold16(sum16(0, out[:20])))
	copy(out[20:22], tcp[2:4])
	copy(out[22:24], tcp[0:2])
	binary.BigEndian.PutUint32(out[28:], binary.BigEndian.Uint32(tcp[4:])+1+uint32(payload))
	out[32] = 5 << 4
	out[33] = 0x14 // RST, ACK
	setTCPSum(out)
	return out
}
