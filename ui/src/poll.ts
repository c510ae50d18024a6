// SPDX-License-Identifier: Apache-2.0
// What is not in the stream is asked for, while somebody looks at it.
import { useEffect, useState } from 'preact/hooks';

/**
 * usePolled returns the newest answer, and the error of the last attempt; empty if there is none. While on is set, it
 * asks again a pause (milliseconds) after each answer, and at once when what it is about changes.
 */
export function usePolled<T>(on: boolean, ask: () => Promise<T>, pause: number, about = ''): [T | undefined, string] {
  const [value, setValue] = useState<T>();
  const [error, setError] = useState('');
  useEffect(() => {
    if (!on) return;
    let timer = 0;
    let ended = false;
    const look = async () => {
      try {
        const next = await ask();
        if (ended) return;
        setValue(() => next);
        setError('');
      } catch (e) {
        if (ended) return;
        setError((e as Error).message);
      }
      timer = window.setTimeout(() => void look(), pause);
    };
    void look();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [on, about]);
  return [value, error];
}
