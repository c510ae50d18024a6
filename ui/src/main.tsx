// SPDX-License-Identifier: Apache-2.0
// The page: header, and the view that the part of the address behind # names. So it works below any path.
import { render } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import 'uplot/dist/uPlot.min.css';
import './style.css';
import { Events } from './events';
import { language, languages, preferred, setLanguage, t, type Key, type Language } from './i18n';
import { connect, getAbout, type Live } from './live';
import { Nodes } from './node';
import { Peers } from './peers';
import { ServiceView } from './service';
import { Services } from './services';
import type { About } from './types';
import { Wakes } from './waterfall';

type View = 'services' | 'connections' | 'wakes' | 'events' | 'node';
const views: View[] = ['services', 'connections', 'wakes', 'events', 'node'];
type Theme = 'auto' | 'light' | 'dark';
const themes: Theme[] = ['auto', 'light', 'dark'];

/** read and write keep choices of the user; a browser may forbid that. */
function read<T extends string>(key: string, allowed: readonly T[]): T | undefined {
  try {
    const v = localStorage.getItem(`wangell-${key}`);
    return allowed.find((a) => a === v);
  } catch {
    return undefined;
  }
}

function write(key: string, value: string): void {
  try {
    localStorage.setItem(`wangell-${key}`, value);
  } catch { /* the choice holds until the page is closed */ }
}

function useHash(): string {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const on = () => setHash(location.hash);
    addEventListener('hashchange', on);
    return () => removeEventListener('hashchange', on);
  }, []);
  return hash;
}

const dark = matchMedia('(prefers-color-scheme: dark)');

function App({ live, subscribe }: { live: Live; subscribe: (f: () => void) => () => void }) {
  const [, redraw] = useState(0);
  const [about, setAbout] = useState<About>();
  const [theme, setTheme] = useState<Theme>(read('theme', themes) ?? 'auto');
  const [lang, setLang] = useState<Language>(language());
  const hash = useHash();
  const [view, service] = parse(hash);

  useEffect(() => subscribe(() => redraw((n) => n + 1)), []);
  useEffect(() => {
    const on = () => redraw((n) => n + 1);
    dark.addEventListener('change', on);
    return () => dark.removeEventListener('change', on);
  }, []);
  const connection = live.connection();
  useEffect(() => {
    if (!about || connection === 'live') getAbout().then(setAbout, () => undefined);
  }, [connection === 'live']);
  useEffect(() => live.watch(service ?? ''), [service]);
  useEffect(() => { document.title = service ? `${service} · Wangell` : `${t(view)} · Wangell`; }, [hash, lang]);
  document.documentElement.dataset.theme = theme;

  const { store } = live;
  const look = `${theme} ${dark.matches}`;
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => { e.preventDefault(); document.getElementById('main')?.focus(); }}>{t('skip')}</a>
      <header class="top">
        <a class="brand" href="#/services"><img src="./icon.svg" alt="" width="24" height="24" />Wangell</a>
        <nav aria-label="Wangell">
          {views.map((v) => <a key={v} href={`#/${v}`} aria-current={v === view ? 'page' : undefined}>{t(v)}</a>)}
        </nav>
        <span class={`connection ${connection}`} role="status"><i aria-hidden="true" />{t(connection === 'denied' && live.reason() ? 'refused' : connection)}</span>
        <span class="settings">
          <label><span class="hidden">{t('language')}</span>
            <select value={lang} onChange={(e) => {
              const l = e.currentTarget.value as Language;
              setLanguage(l);
              write('language', l);
              setLang(l);
            }}>
              {Object.entries(languages).map(([l, name]) => <option key={l} value={l} lang={l}>{name}</option>)}
            </select></label>
          <label><span class="hidden">{t('theme')}</span>
            <select value={theme} onChange={(e) => {
              const next = e.currentTarget.value as Theme;
              write('theme', next);
              setTheme(next);
            }}>
              {themes.map((x) => <option key={x} value={x}>{t(x as Key)}</option>)}
            </select></label>
        </span>
      </header>
      <main id="main" tabIndex={-1}>
        {connection !== 'live' && live.reason() && <p class="empty bad" role="alert">{live.reason()}</p>}
        {view === 'services' && (service
          ? <ServiceView key={service} store={store} name={service} about={about} theme={look} />
          : <><h1 class="hidden">{t('services')}</h1><Services store={store} /></>)}
        {view === 'connections' && <><h1 class="hidden">{t('connections')}</h1><Peers known={about?.nodes ?? false} /></>}
        {view === 'wakes' && <><h1 class="hidden">{t('wakes')}</h1><Wakes wakes={store.wakes} phases={store.phases} /></>}
        {view === 'events' && <><h1 class="hidden">{t('events')}</h1><Events events={store.events} /></>}
        {view === 'node' && <><h1 class="hidden">{t('node')}</h1><Nodes known={about?.nodes ?? false} pressure={store.pressure} /></>}
      </main>
      <footer>{about && `Wangell ${about.version}`}</footer>
    </>
  );
}

/** parse reads #/VIEW or #/services/NAMESPACE/NAME. */
function parse(hash: string): [View, string | undefined] {
  const [first, ...rest] = hash.replace(/^#\//, '').split('/');
  const view = views.find((v) => v === first) ?? 'services';
  return [view, view === 'services' && rest.length === 2 ? rest.join('/') : undefined];
}

setLanguage(read('language', Object.keys(languages) as Language[]) ?? preferred());
const listeners = new Set<() => void>();
const live = connect(() => listeners.forEach((f) => f()));
render(<App live={live} subscribe={(f) => {
  listeners.add(f);
  return () => { listeners.delete(f); };
}} />, document.getElementById('app')!);
