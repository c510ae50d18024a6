/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* SipHash, a keyed hash for short messages (Aumasson and Bernstein, 2012). */
#pragma once

#include <linux/types.h>

#define ROTL(x, n) ((x) << (n) | (x) >> (64 - (n)))

/* One round. */
#define SIPROUND                                                                                                       \
	do {                                                                                                           \
		a += b, b = ROTL(b, 13) ^ a, a = ROTL(a, 32);                                                          \
		c += d, d = ROTL(d, 16) ^ c;                                                                           \
		a += d, d = ROTL(d, 21) ^ a;                                                                           \
		c += b, b = ROTL(b, 17) ^ c, c = ROTL(c, 32);                                                          \
	} while (0)

/* Returns the SipHash of n 64-bit words, little-endian, under a key of two such words, with so many rounds for each
 * word and at the end. n and the rounds are constants. */
static __always_inline __u64 siphash(__u64 k0, __u64 k1, const __u64 *m, __u32 n, __u32 word_rounds, __u32 end_rounds)
{
	__u64 a = k0 ^ 0x736f6d6570736575ull, b = k1 ^ 0x646f72616e646f6dull;
	__u64 c = k0 ^ 0x6c7967656e657261ull, d = k1 ^ 0x7465646279746573ull;
#pragma clang loop unroll(full)
	for (__u32 i = 0; i <= n; i++) {
		__u64 word = i < n ? m[i] : (__u64)n << 59; /* after the message comes its length, bytes */
		d ^= word;
#pragma clang loop unroll(full)
		for (__u32 r = 0; r < word_rounds; r++)
			SIPROUND;
		a ^= word;
	}
	c ^= 0xff;
#pragma clang loop unroll(full)
	for (__u32 r = 0; r < end_rounds; r++)
		SIPROUND;
	return a ^ b ^ c ^ d;
}
