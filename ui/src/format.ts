// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them.

/** count writes a number with at most three significant digits, 12.3k. */
export function count(v: number): string {
  const a = Math.abs(v);
  if (a >= 1e9) return `${digits(v / 1e9)}G`;
  if (a >= 1e6) return `${digits(v / 1e6)}M`;
  if (a >= 1e4) return `${digits(v / 1e3)}k`;
  return digits(v);
}

function digits(v: number): string {
  const a = Math.abs(v);
  if (a === 0) return '0';
  if (a < 0.005) return '<0.01';
  if (a >= 100 || Number.isInteger(v)) return Math.round(v).toString();
  return a >= 10 ? v.toFixed(1) : v.toFixed(2);
}

/** bytes writes bytes with a decimal prefix. */
export function bytes(v: number): string {
  for (const [size, unit] of [[1e12, 'TB'], [1e9, 'GB'], [1e6, 'MB'], [1e3, 'kB']] as const) {
    if (v >= size) return `${digits(v / size)} ${unit}`;
  }
  return `${Math.round(v)} B`;
}

/** micros writes microseconds as milliseconds or seconds. */
export function micros(us: number): string {
  if (us >= 10_000_000) return `${(us / 1e6).toFixed(1)} s`;
  if (us >= 1_000_000) return `${(us / 1e6).toFixed(2)} s`;
  if (us >= 100_000) return `${Math.round(us / 1e3)} ms`;
  return us >= 1000 ? `${(us / 1e3).toFixed(1)} ms` : `${us} µs`;
}

/** span splits seconds into its two largest units. */
export function span(seconds: number): [number, 'd' | 'h' | 'm' | 's'][] {
  let s = Math.max(0, Math.floor(seconds));
  const out: [number, 'd' | 'h' | 'm' | 's'][] = [];
  for (const [size, unit] of [[86400, 'd'], [3600, 'h'], [60, 'm'], [1, 's']] as const) {
    const n = Math.floor(s / size);
    s -= n * size;
    if (n > 0 || (unit === 's' && out.length === 0)) out.push([n, unit]);
    else if (out.length > 0) break;
    if (out.length === 2) break;
  }
  return out;
}
