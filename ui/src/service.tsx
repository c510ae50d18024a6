// SPDX-License-Identifier: Apache-2.0
// One service.
import { useState } from 'preact/hooks';
import { Events } from './events';
import { count, micros } from './format';
import { ago, duration, t } from './i18n';
import { sleep } from './live';
import { Badge, Choices, Tile } from './parts';
import { CountPanel, PodsPanel, PodTable } from './pods';
import { Peers } from './peers';
import { evenness, fullName, slept, type Store } from './store';
import type { About } from './types';
import { Wakes } from './waterfall';

export function ServiceView({ store, name, about, theme }: { store: Store; name: string; about?: About; theme: string }) {
  const [minutes, setMinutes] = useState('2');
  const s = store.byName.get(name);
  if (!s) return (
    <>
      <h1>{name}</h1>
      <p class="empty" role="status">{store.now ? t('noSuchService', name) : t('connecting')}</p>
    </>
  );
  const w = store.watched?.id === s.row.id ? store.watched : undefined;
  const { row, load } = s;
  const saved = slept(row, store.now);
  const even = w && evenness(w.pods.values());
  const seconds = Number(minutes) * 60;
  return (
    <>
      <div class="head">
        <a class="back" href="#/services">← {t('back')}</a>
        <h1><small>{row.ns}/</small>{row.name} <Badge state={row.state} /></h1>
        <p class="facts"><code>{row.addr}</code><span>{t('image')} <code>{row.image}</code></span>
          <span>{t('idleTimeout')} {duration(row.idle)}</span><span>{t('lastPacket')} {ago(load[5], store.now, row.history)}</span></p>
        {row.msg && <p class={row.state === 'Failed' ? 'bad' : 'note'} role="status">{row.msg}</p>}
        <div class="tools">
          <Choices label={t('window')} value={minutes} choose={setMinutes}
            choices={['1', '2', '5', '10'].map((m) => ({ value: m, text: t('minutes', m) }))} />
          {about?.actions && <SleepButton name={fullName(row)} awake={row.state !== 'Cold'} />}
        </div>
      </div>
      <dl class="tiles">
        <Tile name={t(row.req ? 'requestRate' : 'rate')}>{count(load[2])}</Tile>
        <Tile name={t(row.req ? 'openRequests' : 'openConnections')}>{count(load[1])}</Tile>
        <Tile name={t('busiestByMean')}>{even?.ratio !== undefined ? even.ratio.toFixed(2) : '–'}</Tile>
        <Tile name={t('podsServing')} more={t('ofDesired', row.desired)}>{row.serving}</Tile>
        <Tile name={t('lastWake')}>{row.wake !== undefined ? micros(row.wake) : '–'}</Tile>
        <Tile name={t('timeAsleep')}>{duration(saved.seconds)}</Tile>
        {row.cpus ? <Tile name={t('savedCPU')} more={t('coreHours')}>{count(saved.cpu / 3600)}</Tile> : null}
        {row.bytes ? <Tile name={t('savedMemory')} more={t('gibHours')}>{count(saved.memory / 3600 / 2 ** 30)}</Tile> : null}
      </dl>
      {w && (
        <>
          <div class="columns">
            <PodsPanel watched={w} requests={row.req} now={store.now} seconds={seconds} theme={theme} />
            <CountPanel watched={w} now={store.now} seconds={seconds} theme={theme} />
          </div>
          <PodTable watched={w} requests={row.req} now={store.now} />
        </>
      )}
      {about?.nodes && <Peers known service={name} />}
      <Wakes wakes={store.wakes.filter((x) => x.s === name)} phases={store.phases} service
        history={row.history} />
      <Events events={store.events.filter((e) => e.s === name)} service />
    </>
  );
}

function SleepButton({ name, awake }: { name: string; awake: boolean }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState('');
  const click = async () => {
    setBusy(true);
    setError('');
    try {
      await sleep(name);
    } catch (e) {
      setError((e as Error).message);
    }
    setBusy(false);
  };
  return (
    <>
      <button type="button" class="action" disabled={busy || !awake} onClick={() => void click()}>
        {busy ? t('sleeping') : t('sleepNow')}</button>
      {error && <span class="bad" role="alert">{error}</span>}
    </>
  );
}
