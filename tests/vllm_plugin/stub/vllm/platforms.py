class current_platform:
    @staticmethod
    def get_device_name() -> str:
        return "cpu"
