import { userInfo } from 'node:os';
import { isAbsolute, join, resolve } from 'node:path';
import { afterEach, expect, test, vi } from 'vitest';
import { dataHome } from './config.js';

afterEach(() => {
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
});

test.runIf(process.platform === 'linux')(
  'the data folder is below the account’s home for every path in the environment that is not absolute',
  () => {
    // The server of root keeps its data in a system folder.
    vi.spyOn(process, 'getuid').mockReturnValue(1000);
    const ofAccount = join(userInfo().homedir, '.local', 'share', 'boxcar');
    expect(isAbsolute(ofAccount)).toBe(true);
    vi.stubEnv('BOXCAR_DATA_DIR', '');
    for (const home of ['', 'home', './home'])
      for (const data of ['', 'data', '../data', undefined]) {
        vi.stubEnv('HOME', home);
        vi.stubEnv('XDG_DATA_HOME', data);
        expect(dataHome()).toBe(ofAccount);
      }
    vi.stubEnv('HOME', '/home/of');
    expect(dataHome()).toBe('/home/of/.local/share/boxcar');
    vi.stubEnv('XDG_DATA_HOME', '/data');
    expect(dataHome()).toBe('/data/boxcar');
    vi.stubEnv('BOXCAR_DATA_DIR', 'here');
    expect(dataHome()).toBe(resolve('here'));
  },
);
