/** Tokens of an issuer at `/mcp`, with an issuer of its own. */
import { createProject, setProjectArchived } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { discoverOAuthProtectedResourceMetadata, extractWWWAuthenticateParams } from '@modelcontextprotocol/client';
import { afterAll } from 'vitest';
