// SPDX-License-Identifier: Apache-2.0
// Connections to a real service, for tests.
import assert from 'node:assert/strict';
import http from 'node:http';
import net from 'node:net';

/** ask sends a request on a new connection to an address (IP:PORT), and returns the status of the answer. */
export function ask(address) {
  return new Promise((resolve, reject) => {
    http.get(`http://${address}/`, { agent: false }, (r) => {
      r.resume();
      r.on('end', () => resolve(r.statusCode));
      r.on('error', reject);
    }).on('error', reject);
  });
}

/** hold opens connections and keeps them. */
export function hold(address, n) {
  const [host, port] = address.split(':');
  return Promise.all(Array.from({ length: n }, () => new Promise((resolve, reject) => {
    const socket = net.connect(Number(port), host, () => resolve(socket));
    socket.on('error', reject); // of no interest once it is connected
  })));
}

/** load asks n times at once, without a pause, until stop is called. stop returns once the last answer has come. */
export function load(address, n) {
  let loading = true;
  const all = Promise.all(Array.from({ length: n }, async () => {
    while (loading) assert.equal(await ask(address), 200);
  }));
  all.catch(() => undefined); // stop tells
  return { stop: () => { loading = false; return all; } };
}
