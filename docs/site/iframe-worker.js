// Search without a server: browsers start no Worker for a page opened from disk, so a frame stands in.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.frame = frame;
      addEventListener("message", (event) => {
        if (event.source !== frame.contentWindow) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
        if (this.onmessage) this.onmessage(event);
      });
      const page = frame.contentWindow.document;
      page.open();
      page.write(`<body><script>
        postMessage = (data) => parent.postMessage(data, "*");
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() =>
          new Promise((loaded, failed) => {
            const script = document.createElement("script");
            Object.assign(script, { src: url, onload: loaded, onerror: failed });
            document.body.appendChild(script);
          })), Promise.resolve());
      <\/script><script src="${url}"><\/script></body>`);
      page.close();
      this.ready = new Promise((loaded) => (frame.contentWindow.onload = loaded));
    }
    postMessage(data) {
      const message = new MessageEvent("message", { data });
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(message));
    }
    terminate() {
      this.frame.remove();
    }
  };
