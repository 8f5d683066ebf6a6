#!/usr/bin/env node
// This file is not in dist, so that it can be linked before the first build.
import '../dist/main.js';
