import { expect, it } from 'vitest';
import { isIssuerUrl } from './issuer-url.js';

it.each([
  'https://id.example',
  'https://id.example/',
  'https://id.example:8443/tenant/v2.0',
  'http://localhost:8080/realms/main',
  'http://127.0.0.1:1',
  'http://[::1]:1',
])('%s can be an issuer', (text) => {
  expect(isIssuerUrl(text)).toBe(true);
});

it.each([
  'id.example',
  'http://id.example',
  'http://localhost.example',
  'http://127.0.0.1.example',
  'http://10.0.0.1',
  'ftp://localhost',
  'https://user@id.example',
  'https://id.example?tenant=1',
  'https://id.example?',
  'https://id.example#x',
  'https://id.example/"x',
  'https://id.example/ x',
  '',
])('%s cannot be an issuer', (text) => {
  expect(isIssuerUrl(text)).toBe(false);
});
