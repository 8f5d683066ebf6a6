import { KernelError } from '@boxcar/kernel';
import { expect, test } from 'vitest';
import { AddressRules } from './private-address.js';

const isRefused = (rules: AddressRules, url: string): boolean => {
  try {
    rules.check(url, 'card_url');
    return false;
  } catch (error) {
    if (error instanceof KernelError && error.code === 'bad_request') return true;
    throw error;
  }
};

test('literal addresses that are not public are refused in every notation', () => {
  const rules = new AddressRules();
  for (const host of [
    '127.0.0.1',
    '127.1',
    '0x7f.1',
    '0177.0.0.1',
    '2130706433',
    '0x7f000001',
    '127.0.0.1.',
    '１２７.0.0.1',
    '0',
    '10.1.2.3',
    '172.31.255.255',
    '192.168.0.1',
    '169.254.169.254',
    '100.64.0.1',
    '198.18.0.1',
    '224.0.0.1',
    '255.255.255.255',
    '[::1]',
    '[::]',
    '[::ffff:127.0.0.1]',
    '[::ffff:7f00:1]',
    '[0:0:0:0:0:ffff:a00:1]',
    '[::127.0.0.1]',
    '[64:ff9b::7f00:1]',
    '[2002:7f00:1::]',
    '[2001:0:1::1]',
    '[fc00::1]',
    '[fd12::1]',
    '[fe80::1]',
    '[ff02::1]',
  ])
    expect([host, isRefused(rules, `http://${host}:8080/card`)]).toEqual([host, true]);
});

test('public addresses and names are not refused by their notation', () => {
  const rules = new AddressRules();
  for (const host of [
    '93.184.215.14',
    '172.32.0.1',
    '[2606:2800:21f:cb07:6820:80da:af6b:8b2c]',
    'agents.example',
  ])
    expect([host, isRefused(rules, `https://${host}/card`)]).toEqual([host, false]);
});

test('names of this machine are refused by their spelling, unless they are allowed', () => {
  for (const host of ['localhost', 'LOCALHOST', 'localhost.', 'a.localhost'])
    expect([host, isRefused(new AddressRules(), `http://${host}:8080/card`)]).toEqual([host, true]);
  for (const allowed of ['localhost', '127.0.0.1', '::1'])
    expect(isRefused(new AddressRules([allowed]), 'http://localhost:8080/card')).toBe(false);
  expect(isRefused(new AddressRules(), 'http://notlocalhost/card')).toBe(false);
});

test('other schemes and URLs with a user are refused', () => {
  const rules = new AddressRules();
  for (const url of [
    'ftp://agents.example/',
    'file:///etc/passwd',
    'data:,x',
    'no url',
    'http://a:b@agents.example/',
  ])
    expect([url, isRefused(rules, url)]).toEqual([url, true]);
});

test('a host name that is longer than allowed is refused', () => {
  const rules = new AddressRules();
  const longest = `${'a'.repeat(61)}.`.repeat(4);
  expect(isRefused(rules, `https://${longest}agent`)).toBe(false);
  expect(isRefused(rules, `https://${longest}agents`)).toBe(true);
  // Two thousand characters that become six thousand in the URL.
  expect(isRefused(rules, `https://${'\u{4e00}\u{5143}\u{7532}.'.repeat(400)}example/`)).toBe(true);
});

test('a host name is judged by the address to which it resolves', () => {
  const rules = new AddressRules();
  expect(rules.allows('agents.example', '93.184.215.14')).toBe(true);
  for (const address of ['127.0.0.1', '::1', '::ffff:10.0.0.1', 'fe80::1%eth0', '10.0.0.1', 'nonsense'])
    expect([address, rules.allows('agents.example', address)]).toEqual([address, false]);
});

test('exceptions are hosts, addresses and networks, and do not extend to neighbors', () => {
  const rules = new AddressRules(['agents.internal', '127.0.0.1', '10.1.0.0/16', 'fd00::/8']);
  expect(rules.allows('agents.internal', '192.168.0.1')).toBe(true);
  expect(rules.allows('other.internal', '192.168.0.1')).toBe(false);
  expect(isRefused(rules, 'http://127.0.0.1:1/')).toBe(false);
  expect(isRefused(rules, 'http://[::ffff:127.0.0.1]:1/')).toBe(false);
  expect(isRefused(rules, 'http://127.0.0.2/')).toBe(true);
  expect(isRefused(rules, 'http://10.1.255.1/')).toBe(false);
  expect(isRefused(rules, 'http://10.2.0.1/')).toBe(true);
  expect(isRefused(rules, 'http://[fd12::1]/')).toBe(false);
});

test('an exception that is not a host, an address or a network is refused at the start', () => {
  for (const word of ['', '*', '10.0.0.0/33', '10.0.0.0/8/8', 'http://host', '256.1.1.1', '10.0.0.0/x'])
    expect(() => new AddressRules([word])).toThrow(/is not a host, an address or a network/);
});
