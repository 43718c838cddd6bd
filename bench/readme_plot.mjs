// Draws accuracy against latency as the report's page does, without a browser: {points, options} on stdin becomes an <svg> on stdout.
import {readFileSync} from 'node:fs';
import {fileURLToPath} from 'node:url';
import {runInThisContext} from 'node:vm';

const escape = (text) => String(text).replace(/[&<>"]/g, (letter) => `&#${letter.charCodeAt(0)};`);

class Element {
  constructor(name) { Object.assign(this, {name, attributes: [], children: []}); }

  setAttribute(key, value) { this.attributes.push(` ${key}="${escape(value)}"`); }

  append(...children) { this.children.push(...children); }

  toString() {
    const inside = this.children.map((child) => (child instanceof Element ? `\n${child}` : escape(child))).join('');
    return `<${this.name}${this.attributes.join('')}>${inside}</${this.name}>`;
  }
}

globalThis.document = {createElementNS: (_, name) => new Element(name)};
const scripts = new URL('../edgedistill/evaluation/html/', import.meta.url);
for (const name of ['drawing.js', 'accuracy_plot.js']) runInThisContext(readFileSync(new URL(name, scripts), 'utf8'), fileURLToPath(new URL(name, scripts)));
const {points, options} = JSON.parse(readFileSync(0, 'utf8'));
process.stdout.write(String(accuracyPlot(points, options)));
