// SPDX-License-Identifier: Apache-2.0
// All that is known, and how messages of the server change it. Its memory is bounded.
import type { All, Detail, Event, Load, Pod, Pressure, Row, Tick, Wake } from './types';

/** Samples that are kept of a watched service, and of the rate of every other one. */
export const span = 600;
export const shortSpan = 60;
const keptEvents = 500;
const keptWakes = 100;

export interface Service {
  row: Row;
  load: Load;
  /** New flows per second in the last shortSpan seconds, newest last; empty while it was not in use. */
  rates: number[];
}

export interface PodEntry {
  pod: Pod;
  load: Load;
  /** New flows per second at the times of the watched service; shorter if the pod is younger. */
  rates: number[];
}

/** Watched is the service that is looked at, with its pods. Its columns have the same length. */
export interface Watched {
  id: number;
  pods: Map<number, PodEntry>;
  count: [number, number, number, number];
  times: number[]; // Unix seconds
  rate: number[];
  open: number[];
  good: number[];
  failed: number[];
  coming: number[];
  going: number[];
}

export interface Store {
  /** Unix milliseconds of the server at the last message. */
  now: number;
  services: Map<number, Service>;
  byName: Map<string, Service>;
  phases: string[];
  wakes: Wake[]; // oldest first
  events: Event[]; // oldest first
  pressure: Pressure[];
  watched?: Watched;
}

export function newStore(): Store {
  return { now: 0, services: new Map(), byName: new Map(), phases: [], wakes: [], events: [], pressure: [] };
}

export const fullName = (r: Row): string => `${r.ns}/${r.name}`;
const noLoad = (id: number): Load => [id, 0, 0, 0, 0, 0];

/** applyAll replaces everything, except the short past of services that were known before. */
export function applyAll(store: Store, all: All): void {
  const past = new Map([...store.byName].map(([name, s]) => [name, s.rates]));
  Object.assign(store, newStore(), { phases: all.phases });
  applyTick(store, all);
  for (const [name, s] of store.byName) s.rates = past.get(name) ?? s.rates;
  const w = all.watched;
  if (!w) return;
  const n = w.h.t.length;
  const column = (values: number[] | null): number[] => pad(values ?? [], n);
  store.watched = {
    id: w.id, pods: new Map(), count: w.c, times: w.h.t.map((t) => t / 1000), rate: column(w.h.rate),
    open: column(w.h.open), good: column(w.h.good), failed: column(w.h.failed), coming: column(w.h.coming),
    going: column(w.h.going),
  };
  for (const pod of w.p ?? []) {
    store.watched.pods.set(pod.id, { pod, load: noLoad(pod.id), rates: w.h.pods?.[pod.id] ?? [] });
  }
  for (const load of w.l ?? []) setLoad(store.watched.pods, load);
}

/** pad puts zeros before values, so that there are n of them. */
function pad(values: number[], n: number): number[] {
  return values.length >= n ? values.slice(-n) : [...new Array<number>(n - values.length).fill(0), ...values];
}

function setLoad(pods: Map<number, PodEntry>, load: Load): void {
  const p = pods.get(load[0]);
  if (p) p.load = load;
}

/** applyTick takes what has changed of services, wakes and events. */
export function applyTick(store: Store, tick: Tick): void {
  store.now = tick.t;
  for (const row of tick.s ?? []) {
    const known = store.services.get(row.id);
    if (known) known.row = row;
    else {
      const s = { row, load: noLoad(row.id), rates: [] };
      store.services.set(row.id, s);
      store.byName.set(fullName(row), s);
    }
  }
  for (const id of tick.gone ?? []) {
    const s = store.services.get(id);
    if (!s) continue;
    store.services.delete(id);
    if (store.byName.get(fullName(s.row)) === s) store.byName.delete(fullName(s.row));
  }
  for (const load of tick.l ?? []) {
    const s = store.services.get(load[0]);
    if (s) s.load = load;
  }
  for (const s of store.services.values()) remember(s);
  for (const wake of tick.w ?? []) putWake(store.wakes, wake);
  if (tick.e) store.events = [...store.events, ...tick.e].slice(-keptEvents);
  if (tick.p) store.pressure = tick.p;
}

/** remember adds the present rate to the past of a service that is or was in use. */
function remember(s: Service): void {
  const rate = s.load[2];
  if (rate === 0 && s.rates.length === 0) return;
  s.rates.push(rate);
  if (s.rates.length > shortSpan) s.rates.shift();
  if (rate === 0 && s.rates.every((r) => r === 0)) s.rates = [];
}

function putWake(wakes: Wake[], wake: Wake): void {
  const at = wakes.findIndex((w) => w.s === wake.s && w.n === wake.n);
  if (at >= 0) wakes[at] = wake;
  else wakes.push(wake);
  if (wakes.length > keptWakes) wakes.shift();
}

/** applyPods takes what has changed of the watched service's pods. It follows the tick of the same moment. */
export function applyPods(store: Store, detail: Detail): void {
  const w = store.watched;
  if (!w) return;
  for (const pod of detail.p ?? []) {
    const known = w.pods.get(pod.id);
    if (known) known.pod = pod;
    else w.pods.set(pod.id, { pod, load: noLoad(pod.id), rates: [] });
  }
  for (const load of detail.l ?? []) setLoad(w.pods, load);
  for (const id of detail.gone ?? []) w.pods.delete(id);
  w.count = detail.c;
  const load = store.services.get(w.id)?.load ?? noLoad(w.id);
  push(w.times, store.now / 1000);
  push(w.rate, load[2]);
  push(w.open, load[1]);
  push(w.good, detail.c[0]);
  push(w.failed, detail.c[1]);
  push(w.coming, detail.c[2]);
  push(w.going, detail.c[3]);
  for (const p of w.pods.values()) push(p.rates, p.load[2]);
}

function push(column: number[], value: number): void {
  column.push(value);
  if (column.length > span) column.shift();
}

/** evenness is the rate of the busiest serving pod by the mean of all serving ones; undefined if they do nothing. */
export function evenness(pods: Iterable<PodEntry>): { mean: number; busiest: number; ratio?: number } {
  let sum = 0;
  let busiest = 0;
  let n = 0;
  for (const p of pods) {
    if (p.pod.state !== 'serving') continue;
    sum += p.load[2];
    busiest = Math.max(busiest, p.load[2]);
    n++;
  }
  const mean = n ? sum / n : 0;
  return { mean, busiest, ratio: mean > 0 ? busiest / mean : undefined };
}

/** slept is how long a service has slept, and what that saved: seconds, core-seconds and byte-seconds. */
export function slept(row: Row, now: number): { seconds: number; cpu: number; memory: number } {
  const present = row.since ? Math.max(0, now / 1000 - row.since) : 0;
  return {
    seconds: row.asleep + present, cpu: (row.cpu ?? 0) + present * (row.cpus ?? 0),
    memory: (row.mem ?? 0) + present * (row.bytes ?? 0),
  };
}
