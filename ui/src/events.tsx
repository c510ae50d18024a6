// SPDX-License-Identifier: Apache-2.0
import { clock, t, type Key } from './i18n';
import { Badge, Panel } from './parts';
import type { Event } from './types';

const states = ['Cold', 'Waking', 'Warm', 'Frozen', 'Stopping', 'Failed'];

/** Events are the newest first. */
export function Events({ events, service }: { events: Event[]; service?: boolean }) {
  return (
    <Panel title={t('events')}>
      {events.length === 0 ? <p class="empty">{t('noEvents')}</p> : (
        <div class="scroll" tabIndex={0} role="region" aria-label={t('events')}>
          <table class="events">
            <thead><tr><th scope="col">{t('time')}</th>{!service && <th scope="col">{t('service')}</th>}
              <th scope="col">{t('event')}</th></tr></thead>
            <tbody>
              {events.slice(-200).reverse().map((e, i) => (
                <tr key={`${e.t} ${events.length - i}`} class={e.sev}>
                  <td><time dateTime={new Date(e.t).toISOString()}>{clock(e.t)}</time></td>
                  {!service && <td>{e.s ? <a href={`#/services/${e.s}`}>{e.s}</a> : e.node ?? '–'}</td>}
                  <td>{e.kind === 'state' && states.includes(e.text ?? '') ? <Badge state={e.text as Key} /> : e.text}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
  );
}
