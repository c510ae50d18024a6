// SPDX-License-Identifier: Apache-2.0
// The stream of the server. It is open while the page is visible: a hidden page costs nothing.
import { applyAll, applyPods, applyTick, newStore, type Store } from './store';
import type { About, All, Connections, Detail, Gate, Tick } from './types';

export type Connection = 'connecting' | 'live' | 'lost' | 'denied' | 'busy';

/** How long a page stays connected after it was hidden. */
const hiddenFor = 30_000;
/** The time before another attempt after the server has refused one. */
const retryAfter = 3_000;
/** The server sends something every second: a stream that is silent for that long has no server any more. */
const silentFor = 10_000;

export interface Live {
  store: Store;
  connection: () => Connection;
  /** What the server has said about why there is no stream; empty if nothing. */
  reason: () => string;
  watch: (service: string) => void;
}

/** connect keeps a store up to date, and calls changed after each message. */
export function connect(changed: () => void): Live {
  const store = newStore();
  let connection: Connection = 'connecting';
  let stream: EventSource | undefined;
  let watched = '';
  let timer = 0;
  let watchdog = 0;
  let reason = '';

  const set = (c: Connection, why = '') => {
    connection = c;
    reason = why;
    changed();
  };
  const close = () => {
    clearTimeout(timer);
    clearTimeout(watchdog);
    stream?.close();
    stream = undefined;
  };
  const open = () => {
    close();
    const s = new EventSource(watched ? `./api/stream?service=${encodeURIComponent(watched)}` : './api/stream');
    stream = s;
    const guard = () => {
      clearTimeout(watchdog);
      watchdog = window.setTimeout(() => {
        set('lost');
        open();
      }, silentFor);
    };
    guard();
    const on = <T>(name: string, apply: (store: Store, message: T) => void) =>
      s.addEventListener(name, (e) => {
        if (stream !== s) return;
        guard();
        apply(store, JSON.parse((e as MessageEvent<string>).data) as T);
        set('live');
      });
    on<All>('all', applyAll);
    on<Tick>('tick', applyTick);
    on<Detail>('pods', applyPods);
    s.onerror = () => {
      if (stream !== s) return;
      if (s.readyState !== EventSource.CLOSED) return set('lost'); // it connects again by itself
      close();
      void status().then(([c, why]) => {
        set(c, why);
        timer = window.setTimeout(open, retryAfter);
      });
    };
  };
  document.addEventListener('visibilitychange', () => {
    clearTimeout(timer);
    if (document.hidden) timer = window.setTimeout(close, hiddenFor);
    else if (!stream) open();
  });
  open();
  return {
    store,
    connection: () => connection,
    reason: () => reason,
    watch: (service) => {
      if (service === watched) return;
      watched = service;
      open();
    },
  };
}

/** status says why there is no stream, also in words of the server if it has any. */
async function status(): Promise<[Connection, string]> {
  try {
    const r = await fetch('./api/about');
    if (r.ok) return ['busy', ''];
    return [r.status === 401 || r.status === 403 ? 'denied' : 'lost', await said(r)];
  } catch {
    return ['lost', ''];
  }
}

/** said returns the error that an answer has; empty if it has none. */
async function said(r: Response): Promise<string> {
  try {
    return ((await r.json()) as { error: string }).error;
  } catch {
    return '';
  }
}

async function get<T>(path: string): Promise<T> {
  const r = await fetch(path);
  if (!r.ok) throw new Error(await problem(r));
  return (await r.json()) as T;
}

const problem = async (r: Response): Promise<string> => (await said(r)) || `${r.status} ${r.statusText}`;

export const getAbout = (): Promise<About> => get('./api/about');
export const getConnections = (): Promise<Connections> => get('./api/connections');
/** getGates returns all gates; only that of a node, or of the first one, has its counters and interfaces. */
export const getGates = (detail: string): Promise<Gate[]> => get(`./api/gates?detail=${encodeURIComponent(detail)}`);

/** sleep puts a service to sleep, and returns once it sleeps. */
export async function sleep(service: string): Promise<void> {
  const r = await fetch(`./api/sleep?service=${encodeURIComponent(service)}`, {
    method: 'POST', headers: { 'Wangell-Action': 'sleep' },
  });
  if (!r.ok) throw new Error(await problem(r));
}
