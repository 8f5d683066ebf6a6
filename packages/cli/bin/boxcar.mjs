#!/usr/bin/env node
// Stands outside dist so that the link to it can be made before the first build.
import '../dist/main.js';
