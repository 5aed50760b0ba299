// Reads every picture of the pages as the site's mermaid does in a browser, and says which it cannot draw.
// usage: node pictures.cjs MERMAID PAGE...    As much of a browser is made up as reading takes; nothing is drawn.
"use strict";
const fs = require("node:fs");
const vm = require("node:vm");

const anything = () =>
  new Proxy(function () {}, {
    get: (_, key) => ({ nodeType: 9, prototype: Object.prototype, [Symbol.toPrimitive]: () => "" })[key] ?? anything(),
    apply: anything,
    construct: anything,
    set: () => true,
  });

globalThis.window = globalThis;
globalThis.document = anything();
globalThis.addEventListener = () => {};
for (const name of ["Element", "Node", "NodeFilter", "DocumentFragment", "HTMLTemplateElement", "NamedNodeMap", "HTMLFormElement", "DOMParser"]) {
  globalThis[name] = class {};
}

const [script, ...pages] = process.argv.slice(2);
vm.runInThisContext(fs.readFileSync(script, "utf8"));

(async () => {
  let read = 0;
  for (const page of pages) {
    for (const [, text] of fs.readFileSync(page, "utf8").matchAll(/^```mermaid\n(.*?)^```/gms)) {
      try {
        await mermaid.parse(text);
        read += 1;
      } catch (error) {
        console.error(`${page}: a picture (${text.split("\n")[0]}) cannot be drawn: ${error.message ?? error}`);
        process.exitCode = 1;
      }
    }
  }
  console.log(read);
})();
