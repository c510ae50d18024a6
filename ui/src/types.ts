// SPDX-License-Identifier: Apache-2.0
// What the server sends: see internal/show/dashboard (row.go, news.go, board.go), which documents each field.

export interface Row {
  id: number;
  ns: string;
  name: string;
  addr: string;
  image: string;
  state: State;
  msg?: string;
  serving: number;
  desired: number;
  idle: number;
  since?: number;
  asleep: number;
  cpu?: number;
  mem?: number;
  cpus?: number;
  bytes?: number;
  wakes?: number;
  wake?: number;
  result?: string;
  history?: number;
  req?: boolean;
}

export type State = 'Cold' | 'Waking' | 'Warm' | 'Frozen' | 'Stopping' | 'Failed';

/** id, open flows (or requests, if the service has req), new ones per second, bytes in and out per second, time of the last packet in Unix seconds. */
export type Load = [number, number, number, number, number, number];

export interface Pod {
  id: number;
  name: string;
  node?: string;
  addr?: string;
  state: string;
  started?: number;
}

export interface Wake {
  s: string;
  n: number;
  start: number;
  result: string;
  reason?: string;
  parked: number;
  released: number;
  /** Pairs of a phase's index and the microseconds from the first phase to its end. */
  ph: [number, number][];
}

export interface Event {
  t: number;
  kind: string;
  s?: string;
  sev?: string;
  text?: string;
  node?: string;
}

export interface Pressure {
  reason: string;
  message: string;
}

export interface Tick {
  t: number;
  s?: Row[];
  gone?: number[];
  l?: Load[];
  w?: Wake[];
  e?: Event[];
  p?: Pressure[];
}

export interface Detail {
  p?: Pod[];
  gone?: number[];
  l?: Load[];
  /** Pods that are good, failed, coming and going. */
  c: [number, number, number, number];
}

export interface History {
  t: number[];
  rate: number[] | null;
  open: number[] | null;
  good: number[] | null;
  failed: number[] | null;
  coming: number[] | null;
  going: number[] | null;
  pods?: Record<string, number[]>;
}

export interface All extends Tick {
  phases: string[];
  watched?: Detail & { id: number; h: History };
}

export interface About {
  version: string;
  actions: boolean;
  /** Whether the state of gates, and who is connected, may be seen. */
  nodes: boolean;
}

export interface Connection {
  client: string;
  service: string;
  open: number;
}

export interface Connections {
  most: Connection[];
  others: number;
  /** Nodes that have not answered. */
  silent?: string[];
}

export interface Gate {
  node: string;
  /** It has not answered. */
  silent?: boolean;
  parked: number;
  tables: { name: string; used: number; size: number }[];
  /** Of the node that is looked at. */
  counters?: Record<string, number>;
  interfaces?: Record<string, string>;
}
